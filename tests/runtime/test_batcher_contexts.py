"""A batch is submitted in the context of the first who has a command in it."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar, copy_context
from functools import partial

import pytest

from dibs.clock import SystemClock
from dibs.model import Command, Inspect, Unknown
from dibs.runtime.batcher import Batcher
from dibs.stores.port import Done, GiveUp

caller: ContextVar[str] = ContextVar("caller", default="nobody")


class Waits:
    """Takes up to `parallel` batches at a time, and remembers in whose context each was submitted."""

    inbox = ""

    def __init__(self, parallel: int) -> None:
        self.parallel = parallel
        self.called_by: list[str] = []
        self.landing: list[Callable[[], None]] = []

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        self.called_by.append(caller.get())
        self.landing.append(lambda: done([Unknown()] * len(commands)))
        return lambda: None

    def land(self) -> None:
        """Answer the oldest, in the context of whoever has opened the connection."""
        opener = copy_context()
        opener.run(caller.set, "whoever has opened the connection")
        opener.run(self.landing.pop(0))


def as_caller(name: str, batcher: Batcher) -> asyncio.Task[object]:
    context = copy_context()
    context.run(caller.set, name)
    return asyncio.create_task(batcher.call(Inspect(b"lock:x")), context=context)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("parallel", [1, 2])
async def test_behind_others(parallel: int) -> None:
    connection = Waits(parallel)
    batcher = Batcher(connection, asyncio.get_running_loop(), SystemClock(), 5.0)  # type: ignore[arg-type]
    tasks = []
    for name in ("first", "second", "third"):
        tasks.append(as_caller(name, batcher))
        await turns()
    assert connection.called_by == ["first", "second"][:parallel]
    while connection.landing:
        connection.land()
        await turns()
    await asyncio.gather(*tasks)
    assert connection.called_by == ["first", "second", "third"][: len(connection.called_by)]
    assert len(connection.called_by) == parallel + 1


async def test_where_nothing_was_ever_set() -> None:
    """An empty context is false, and can be entered once only as any other."""
    connection = Waits(1)
    batcher = Batcher(connection, asyncio.get_running_loop(), SystemClock(), 5.0)  # type: ignore[arg-type]
    call = partial(batcher.call, Inspect(b"lock:x"))
    tasks = []
    for _ in range(2):
        tasks.append(asyncio.create_task(call(), context=Context()))
        await turns()
    async with asyncio.timeout(10):
        while connection.landing:
            connection.land()
            await turns()
        await asyncio.gather(*tasks)
