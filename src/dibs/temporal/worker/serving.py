"""Serving the permit queue as a process of its own: signals, health and metrics around a `TemporalWorker`."""

import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from temporalio.client import Client, Plugin
from temporalio.converter import DataConverter

from dibs.config import Duration, seconds
from dibs.stores.temporal.client import connect
from dibs.temporal.worker.health import HealthServer, host_port
from dibs.temporal.worker.joining import (
    CONNECT_TIMEOUT,
    checked_converter,
    must_be_known,
    runtime,
    settings,
)
from dibs.temporal.worker.worker import DRAIN, TemporalWorker

type Say = Callable[[str, str], object]
"""Told what happens: an event (`serving`, `ready`, `away`, `back`, `draining`, `stopped`, and where `health`
and `metrics` are) and a line about it."""

_ENDING = (signal.SIGTERM, signal.SIGINT)

AT_ONCE = 0.5
"""Signals that come within so many seconds are one: many send it to the process and to its group."""


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
    """Serve permits and brokers until SIGTERM or SIGINT; what `dibs temporal worker` does.

    Connects to what `url` (`temporal://host:7233/namespace`), `address`, `namespace` and `profile` say,
    else Temporal's own settings. `health` and `metrics` are addresses (`127.0.0.1:8080`) at which to
    answer `/livez` and `/readyz`, and Prometheus. The first signal drains; a second one ends the process
    as if nobody had minded. What Temporal's threads log goes to the logger `temporalio.core`. Other
    options are those of Temporal's `Worker`. Raises `NotConfigured`, `BackendUnavailable`, `Forbidden`.
    """
    told = say or (lambda event, line: None)
    checked_converter(data_converter)
    drain = seconds(drain, "drain")
    found = settings(
        url, address=address, namespace=namespace, profile=profile, task_queue=task_queue
    )
    target = found.target()
    threads, metrics_at = runtime(metrics)
    stopping = asyncio.Event()
    state = _State()
    with _ending_by_signals(stopping):
        async with _answering(health, state, told):
            if metrics is not None:
                told("metrics", f"metrics at http://{metrics_at}/metrics")
            connecting = connect(
                target,
                CONNECT_TIMEOUT,
                runtime=threads,
                plugins=plugins,
                data_converter=data_converter or DataConverter.default,
            )
            client = await _unless(stopping, connecting)
            if client is not None:
                await must_be_known(client, found.task_queue)
                worker = TemporalWorker(client, task_queue=found.task_queue, drain=drain, **options)
                state.worker = worker
                told("serving", f"serving task queue {worker.task_queue!r} of {target}")
                await _serve(worker, stopping, told)
            told("stopped", "stopped")


class _State:
    worker: TemporalWorker | None = None

    def not_ready(self) -> str | None:
        return "it is connecting" if self.worker is None else self.worker.not_ready


async def _serve(worker: TemporalWorker, stopping: asyncio.Event, told: Say) -> None:
    async def drain() -> None:
        await stopping.wait()
        told("draining", "draining: no new tasks; once more ends it at once")
        worker.stop()

    def on_change(trouble: str | None) -> None:
        if trouble is None:
            told("back", "the server has it among those who poll again")
        else:
            told("away", f"not ready: {trouble}")

    draining = asyncio.create_task(drain())
    try:
        await worker.run(lambda: told("ready", "ready"), on_change)
    finally:
        draining.cancel()


async def _unless(stopping: asyncio.Event, connecting: Any) -> Client | None:
    """What is awaited, unless we are to stop before."""
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


@asynccontextmanager
async def _answering(address: str | None, state: _State, told: Say) -> AsyncGenerator[None]:
    if address is None:
        yield
        return
    host, port = host_port(address, "the health endpoint's address")
    checks = {"/livez": lambda: None, "/readyz": state.not_ready}
    async with HealthServer(host, port, checks) as server:
        told("health", f"health at http://{server.address}/livez and /readyz")
        yield


@contextmanager
def _ending_by_signals(stopping: asyncio.Event) -> Generator[None]:
    """The first signal sets the event; the next finds nobody at home, and ends the process."""
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
