"""A backend that asks for it is called in the context of whoever has a command in the batch."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar, copy_context
from functools import partial

import pytest

from dibs.clock import SystemClock
from dibs.model import Command, Inspect, Reply, Unknown
from dibs.runtime.batcher import Batcher
from dibs.stores.port import Land

caller: ContextVar[str] = ContextVar("caller", default="nobody")


class Waits:
    """Answers when it is told to, and remembers in whose context it was called."""

    in_context = True
    inbox = ""

    def __init__(self) -> None:
        self.called_by: list[str] = []
        self.gate = asyncio.Event()

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        return None

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        self.called_by.append(caller.get())
        await self.gate.wait()
        return [Unknown()] * len(commands)


class Launches(Waits):
    """The same, by launched batches."""

    def __init__(self) -> None:
        super().__init__()
        self.landing: list[Callable[[], None]] = []

    def launch(self, commands: Sequence[Command], land: Land) -> Callable[[], None] | None:
        self.called_by.append(caller.get())
        self.landing.append(lambda: land([Unknown()] * len(commands)))
        return lambda: None


def as_caller(name: str, batcher: Batcher) -> asyncio.Task[object]:
    context = copy_context()
    context.run(caller.set, name)
    return asyncio.create_task(batcher.call(Inspect(b"lock:x")), context=context)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("asks", [True, False])
async def test_behind_a_flight(asks: bool) -> None:
    backend = Waits()
    backend.in_context = asks
    batcher = Batcher(backend, asyncio.get_running_loop(), SystemClock(), 5.0)  # type: ignore[arg-type]
    first = as_caller("first", batcher)
    await turns()
    second = as_caller("second", batcher)
    await turns()
    backend.gate.set()
    await asyncio.gather(first, second)
    assert backend.called_by == ["first", "second" if asks else "first"]


async def test_where_nothing_was_ever_set() -> None:
    """An empty context is false, and can be entered once only as any other."""
    backend = Waits()
    batcher = Batcher(backend, asyncio.get_running_loop(), SystemClock(), 5.0)  # type: ignore[arg-type]
    call = partial(batcher.call, Inspect(b"lock:x"))
    first = asyncio.create_task(call(), context=Context())
    await turns()
    second = asyncio.create_task(call(), context=Context())
    await turns()
    backend.gate.set()
    async with asyncio.timeout(10):
        await asyncio.gather(first, second)


async def test_behind_two_that_were_launched() -> None:
    backend = Launches()
    batcher = Batcher(backend, asyncio.get_running_loop(), SystemClock(), 5.0)  # type: ignore[arg-type]
    tasks = []
    for name in ("first", "second", "third"):
        tasks.append(as_caller(name, batcher))
        await turns()
    assert backend.called_by == ["first", "second"]
    opener = copy_context()
    opener.run(caller.set, "whoever has opened the connection")
    while backend.landing:
        opener.run(backend.landing.pop(0))
        await turns()
    await asyncio.gather(*tasks)
    assert backend.called_by == ["first", "second", "third"]
