"""How a worker of ours comes to its server, and what it says where that fails."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temporalio.client import Client, Plugin
from temporalio.converter import DataConverter
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode

from leasehold.backends.temporal.settings import Settings, Target
from leasehold.backends.temporal.trouble import explain, unreachable
from leasehold.backends.temporal.url import read_url
from leasehold.errors import BackendUnavailable, LeaseholdError, NotConfigured
from leasehold.temporal.defaults import task_queue as queue_of
from leasehold.temporal.health import host_port

CONNECT_TIMEOUT = 10.0
"""How long connecting may take, in seconds."""


def settings(
    url: str | None = None,
    *,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    task_queue: str | None = None,
) -> Settings:
    """What a URL says, and the rest over it; without either Temporal's own settings decide."""
    if url:
        found = read_url(url)
    else:
        found = Settings(shown="temporal://", task_queue=queue_of())
    given: dict[str, Any] = {
        "address": address,
        "namespace": namespace,
        "profile": profile,
        "task_queue": task_queue,
    }
    return replace(found, **{name: value for name, value in given.items() if value})


async def connect(
    target: Target,
    *,
    runtime: Runtime | None = None,
    plugins: Sequence[Plugin] = (),
    data_converter: DataConverter | None = None,
) -> Client:
    """A client. Raises `BackendUnavailable`, `Forbidden` and `NotConfigured`."""
    connecting = Client.connect(
        target.address,
        namespace=target.namespace,
        runtime=runtime,
        plugins=plugins,
        data_converter=data_converter or DataConverter.default,
        **target.options,
    )
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            return await connecting
    except TimeoutError as error:
        raise unreachable(TimeoutError("it did not answer in time"), target) from error
    except (RuntimeError, RPCError) as error:
        raise (_by_status(error, target) or unreachable(error, target)) from error
    except ValueError as error:
        raise NotConfigured(
            f"{target.address!r} is no Temporal server's host:port: {error}"
        ) from error


def explain_fatal(error: Exception, client: Client) -> LeaseholdError:
    """What ended a worker."""
    address = client.service_client.config.target_host
    target = Target(address=address, namespace=client.namespace, options={})
    found = _by_status(error, target)
    return found or BackendUnavailable(f"the worker at {target} could not go on: {error}")


def _by_status(error: Exception, target: Target) -> LeaseholdError | None:
    """What a status of the server's means; the SDK's core tells it in a text."""
    if isinstance(error, RPCError):
        return explain(error, target)
    said = str(error)
    for word, code in _STATUSES.items():
        if word in said:
            short = said.partition("Status {")[0].rstrip(" :")
            return explain(RPCError(short, code, b""), target)
    return None


_STATUSES = {
    "code: NotFound": RPCStatusCode.NOT_FOUND,
    "code: PermissionDenied": RPCStatusCode.PERMISSION_DENIED,
    "code: Unauthenticated": RPCStatusCode.UNAUTHENTICATED,
}


def runtime(metrics: str) -> Runtime:
    """Temporal's threads, which also serve Prometheus at `HOST:PORT/metrics`. Raises `NotConfigured`."""
    try:
        served = PrometheusConfig(bind_address=_numeric(metrics))
        return Runtime(telemetry=TelemetryConfig(metrics=served))
    except (OSError, ValueError) as error:
        raise NotConfigured(f"metrics can't be served at {metrics}: {error}") from error


def _numeric(address: str) -> str:
    """The Prometheus exporter looks no names up."""
    host, port = host_port(address, "the metrics' address")
    found = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    return f"[{found}]:{port}" if ":" in found else f"{found}:{port}"
