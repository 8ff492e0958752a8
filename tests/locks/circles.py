"""Tasks or threads that hold one thing each and wait for another, in a ring."""

from collections.abc import Callable
from typing import Any

from dibs import Deadlock
from dibs.core.names import fingerprint, wait_key
from dibs.model import Inspect, Status
from tests.locks.waits import Beside, pause, until, until_queued
from tests.locks.worlds import World


class Crosser:
    """Holds one thing, waits for another, and gives both up; beside the test."""

    def __init__(self, w: World, first: Any, second: Any, **asked: Any) -> None:
        self._w, self._first, self._second, self._asked = w, first, second, asked
        self.held: Any = None
        self.may_go = False
        self.left: bool | None = None
        """It was out of the queue when it was told."""
        self.beside = Beside(w, self._cross)

    async def _cross(self) -> None:
        get = self._w.get
        self.held = await get(self._first.acquire())
        try:
            await until(self._w, lambda: self.may_go)
            lease = await get(self._second.acquire(**self._asked))
            await get(lease.release())
        except Deadlock:
            waiters = (await get(self._second.status())).waiters
            self.left = all(waiter.owner != self.held.owner for waiter in waiters)
            raise
        finally:
            await get(self.held.release())

    @property
    def done(self) -> bool:
        return self.beside.done


async def ring(w: World, *pairs: tuple[Any, Any], **asked: Any) -> list[Crosser]:
    """Each holds its first, then each waits for its second, one after the other."""
    crossers = [Crosser(w, first, second, **asked) for first, second in pairs]
    for each in crossers:
        await until(w, lambda each=each: each.held is not None)  # type: ignore[misc]
    for each in crossers:
        each.may_go = True
        key = each._second.key
        name, kind = key.partition(b":")[2], key.partition(b":")[0].decode()
        await until_queued(w, name, 1, kind)
        w.clock.advance(0.1)
    return crossers


async def nothing_left(w: World, *crossers: Crosser) -> None:
    """No advert stands for what they held."""
    client = w.another()
    for each in crossers:
        key = wait_key(fingerprint(each.held._id))

        async def stands(key: bytes = key) -> bool:
            status: Status = await ask(client, Inspect(key))
            return bool(status.holders or status.waiting)

        while await stands():
            await pause(w)


async def ask(client: Any, command: Any) -> Any:
    rt = client.session.loop_runtime() if hasattr(client, "attach") and is_async(client) else None
    rt = rt or client.session.thread_runtime()
    if not rt.is_ready:
        await rt.ready()
    return (await rt.call(command)).reply


def is_async(client: Any) -> bool:
    return type(client).__module__.endswith("aio")


def all_done(crossers: list[Crosser]) -> Callable[[], bool]:
    return lambda: all(each.done for each in crossers)


async def outcomes(crossers: list[Crosser]) -> list[type[BaseException] | None]:
    errors = [await each.beside.error() for each in crossers]
    return [None if error is None else type(error) for error in errors]
