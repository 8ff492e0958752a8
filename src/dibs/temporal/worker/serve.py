"""Serve the permit queue as a process of its own: connection, signals, health and metrics."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any

from temporalio.client import Client, Plugin
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

from dibs.config import Duration, seconds
from dibs.errors import BackendUnavailable, NotConfigured
from dibs.stores.temporal.client import connect, pollers
from dibs.stores.temporal.ids import task_queue as queue_of
from dibs.stores.temporal.url import ADDRESS, TemporalSettings, read_url
from dibs.temporal.worker.health import HealthServer, host_port
from dibs.temporal.worker.worker import DRAIN, TemporalWorker

TEMPORAL_TASK_QUEUE = queue_of()
"""The task queue of `dibs temporal worker`: the variable of that name, else `distributed-lock-tq`."""

CONNECT_TIMEOUT = 10.0
"""Seconds that connecting may take."""

type Say = Callable[[str, str], object]
"""Gets an event and a line about it. Events: `serving`, `ready`, `away`, `back`, `draining`, `stopped`, and
`health` and `metrics` with their addresses."""


async def connect_temporal_client() -> Client:
    """Connect with Temporal's own settings: the environment, else a profile, else localhost:7233."""
    settings: dict[str, Any] = {"target_host": ADDRESS}
    settings |= ClientConfig.load_client_connect_config()
    return await Client.connect(**settings)


async def serve(
    url: str | None = None,
    *,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    task_queue: str | None = None,
    health: str | None = None,
    metrics: str | None = None,
    drain: Duration = DRAIN,
    data_converter: DataConverter | None = None,
    plugins: Sequence[Plugin] = (),
    say: Say | None = None,
    **options: Any,
) -> None:
    """Serve permits and brokers until SIGTERM or SIGINT, as `dibs temporal worker` does.

    Connects to `url` (`temporal://host:7233/namespace`), `address`, `namespace` and `profile`, else by
    Temporal's own settings. `health` and `metrics` are addresses (`127.0.0.1:8080`) for `/livez` and
    `/readyz`, and for Prometheus. The first signal drains; a second one ends the process at once. Logs of
    Temporal's threads go to the logger `temporalio.core`. Other options are those of Temporal's `Worker`.
    Raises `NotConfigured`, `BackendUnavailable`, `Forbidden`.
    """
    say = say or (lambda event, line: None)
    _check_converter(data_converter)
    drain = seconds(drain, "drain")
    settings = _settings(
        url, address=address, namespace=namespace, profile=profile, task_queue=task_queue
    )
    target = settings.target()
    threads, metrics_at = _runtime(metrics)
    stopping = asyncio.Event()
    state = _State()
    with _ending_by_signals(stopping):
        async with _answering(health, state, say):
            if metrics is not None:
                say("metrics", f"metrics at http://{metrics_at}/metrics")
            connecting = connect(
                target,
                CONNECT_TIMEOUT,
                runtime=threads,
                plugins=plugins,
                data_converter=data_converter or DataConverter.default,
            )
            client = await _unless(stopping, connecting)
            if client is not None:
                with suppress(BackendUnavailable):  # the worker itself reports that
                    await pollers(client, settings.task_queue)
                worker = TemporalWorker(
                    client, task_queue=settings.task_queue, drain=drain, **options
                )
                state.worker = worker
                say("serving", f"serving task queue {worker.task_queue!r} of {target}")
                await _serve(worker, stopping, say)
            say("stopped", "stopped")


async def _serve(worker: TemporalWorker, stopping: asyncio.Event, say: Say) -> None:
    async def drain() -> None:
        await stopping.wait()
        say("draining", "draining: no new tasks; once more ends it at once")
        worker.stop()

    def on_change(trouble: str | None) -> None:
        if trouble is None:
            say("back", "the server has it among those who poll again")
        else:
            say("away", f"not ready: {trouble}")

    draining = asyncio.create_task(drain())
    try:
        await worker.run(lambda: say("ready", "ready"), on_change)
    finally:
        draining.cancel()


async def _unless(stopping: asyncio.Event, connecting: Any) -> Client | None:
    """The client, or None if the process is to stop before."""
    task = asyncio.ensure_future(connecting)
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            client: Client = await task
            return client
        return None
    finally:
        stop.cancel()
        task.cancel()


# -- settings -------------------------------------------------------------------------------------------


def _settings(url: str | None, **given: str | None) -> TemporalSettings:
    """The URL's settings, replaced by the given ones. Without both, Temporal's own settings decide.

    Raises `ValueError` for empty values.
    """
    for name, value in {"url": url, **given}.items():
        if value is not None and not value.strip():
            raise ValueError(f"{name.replace('_', '-')} is empty: give one, or leave it out")
    found = read_url(url) if url else TemporalSettings(shown="temporal://", task_queue=queue_of())
    over: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(found, **over)


def _check_converter(given: Any) -> None:
    """Raises `ValueError` for anything but a converter, such as the class of one."""
    if not isinstance(given, DataConverter | None):
        raise ValueError(
            f"the data converter is {given!r}: give an object, as in "
            "`converter = temporalio.converter.DataConverter(payload_codec=...)`"
        )


def _runtime(metrics: str | None) -> tuple[Runtime, str]:
    """Temporal's threads, and the address of their metrics. Raises `NotConfigured`."""
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
    """Resolve the name and port 0: the Prometheus exporter does neither."""
    host, port = host_port(address, "the metrics' address")
    family, kind, _, _, (found, *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if port == 0:
        with socket.socket(family, kind) as free:
            free.bind((found, 0))
            port = free.getsockname()[1]
    return f"[{found}]:{port}" if ":" in str(found) else f"{found}:{port}"


# -- health and signals ---------------------------------------------------------------------------------


class _State:
    worker: TemporalWorker | None = None

    async def alive(self) -> None:
        """The event loop runs."""

    async def not_ready(self) -> str | None:
        return "it is connecting" if self.worker is None else self.worker.not_ready


@asynccontextmanager
async def _answering(address: str | None, state: _State, say: Say) -> AsyncGenerator[None]:
    if address is None:
        yield
        return
    host, port = host_port(address, "the health endpoint's address")
    checks = {"/livez": state.alive, "/readyz": state.not_ready}
    async with HealthServer(host, port, checks) as server:
        say("health", f"health at http://{server.address}/livez and /readyz")
        yield


_ENDING = (signal.SIGTERM, signal.SIGINT)

AT_ONCE = 0.5
"""Seconds in which several signals count as one: many send it to the process and to its group."""


@contextmanager
def _ending_by_signals(stopping: asyncio.Event) -> Generator[None]:
    """The first signal sets the event. The next one ends the process, by its default action."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _ENDING}

    def no_more() -> None:
        for number in _ENDING:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    def on_signal() -> None:
        if not stopping.is_set():
            stopping.set()
            loop.call_later(AT_ONCE, no_more)

    for number in _ENDING:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
