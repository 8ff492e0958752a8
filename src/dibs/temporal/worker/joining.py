"""What a worker of ours needs to come to its server, and what it says where that fails."""

import logging
import socket
from dataclasses import replace
from typing import Any

from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import RPCError

from dibs.errors import BackendUnavailable, DibsError, Forbidden, NotConfigured
from dibs.stores.temporal.client import pollers
from dibs.stores.temporal.errors import explain, explain_text
from dibs.stores.temporal.protocol.queues import task_queue as queue_of
from dibs.stores.temporal.url import ADDRESS, TemporalSettings, TemporalTarget, read_url
from dibs.temporal.worker.health import host_port

TEMPORAL_TASK_QUEUE = queue_of()
"""The task queue of `dibs temporal worker`: the variable of that name, else `distributed-lock-tq`."""

CONNECT_TIMEOUT = 10.0
"""How long connecting may take, in seconds."""


async def connect_temporal_client() -> Client:
    """Connect as Temporal's own settings say: the environment, else a profile, else localhost:7233."""
    settings = {"target_host": ADDRESS} | ClientConfig.load_client_connect_config()
    return await Client.connect(**settings)


def settings(
    url: str | None = None,
    *,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    task_queue: str | None = None,
) -> TemporalSettings:
    """What a URL says, and the rest over it; without either Temporal's own settings decide.

    Raises `ValueError` for what is empty.
    """
    given: dict[str, str | None] = {
        "address": address,
        "namespace": namespace,
        "profile": profile,
        "task_queue": task_queue,
    }
    for name, value in {"url": url, **given}.items():
        if value is not None and not value.strip():
            raise ValueError(f"{name.replace('_', '-')} is empty: give one, or leave it out")
    if url:
        found = read_url(url)
    else:
        found = TemporalSettings(shown="temporal://", task_queue=queue_of())
    over: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(found, **over)


def checked_converter(found: Any) -> DataConverter | None:
    """As it was given. Raises `ValueError` for what is none, such as the class of one."""
    if isinstance(found, DataConverter | None):
        return found
    what = f"a {type(found).__name__}"
    if isinstance(found, type):
        what = f"the class {found.__name__}"
    elif callable(found):
        what = "a function"
    raise ValueError(
        f"the data converter is {what}: give an object, as in "
        "`converter = temporalio.converter.DataConverter(payload_codec=...)`"
    )


async def must_be_known(client: Client, queue: str) -> None:
    """Raises `NotConfigured` for a namespace that isn't there, and `Forbidden`.

    Anything else may pass: the worker itself tells of it.
    """
    try:
        await pollers(client, queue)
    except (NotConfigured, Forbidden):
        raise
    except DibsError:
        pass


def explain_fatal(error: Exception, client: Client) -> DibsError:
    """What ended a worker."""
    target = TemporalTarget.of(client)
    found = explain(error, target) if isinstance(error, RPCError) else explain_text(error, target)
    return found or BackendUnavailable(f"the worker at {target} could not go on: {error}")


def runtime(metrics: str | None) -> tuple[Runtime, str]:
    """Temporal's threads, and where they serve Prometheus. Raises `NotConfigured`.

    What they have to say themselves is told by the logger `temporalio.core`.
    """
    logs = LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(
            logger=logging.getLogger("temporalio.core"),
            append_target_to_name=False,
            prepend_target_on_message=False,
        ),
    )
    if metrics is None:
        return Runtime(telemetry=TelemetryConfig(logging=logs)), ""
    try:
        address = _numeric(metrics)
        served = PrometheusConfig(bind_address=address)
        return Runtime(telemetry=TelemetryConfig(logging=logs, metrics=served)), address
    except (OSError, ValueError) as error:
        raise NotConfigured(f"metrics can't be served at {metrics}: {error}") from error


def _numeric(address: str) -> str:
    """The Prometheus exporter looks no names up, and doesn't tell which port it has found free."""
    host, port = host_port(address, "the metrics' address")
    family, kind, _, _, (found, *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if port == 0:
        with socket.socket(family, kind) as free:
            free.bind((found, 0))
            port = free.getsockname()[1]
    return f"[{found}]:{port}" if ":" in str(found) else f"{found}:{port}"
