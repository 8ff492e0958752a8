"""Each fault does what it says, to the store and to the caller, for asyncio and for threads."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Granted, Inspect, Release, Released, Renew, Status, Unknown
from dibs.stores.registry import store_for
from dibs.testing import Faults, FaultyStore, ManualClock
from dibs.testing.connections import Mode
from tests.connections import connection_to

KEY = b"lock:a"
TAKE = Acquire(KEY, "a", "me", ttl=10)


class Rig:
    def __init__(self, mode: Mode) -> None:
        store = store_for("memory://", clock=ManualClock())
        self.faults = Faults()
        self.faulty = connection_to(FaultyStore.around(store, self.faults), mode)
        self.sound = connection_to(store, mode)
        self.mode = mode

    def run[T](self, coro: Coroutine[Any, Any, T]) -> T:
        if self.mode == "async":
            return asyncio.run(coro)
        try:
            coro.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        raise AssertionError("a blocking backend suspended")

    def ask(self, command: Any) -> Any:
        return self.run(self.faulty.apply([command]))[0]

    def holders(self) -> int:
        (status,) = self.run(self.sound.apply([Inspect(KEY)]))
        assert isinstance(status, Status)
        return len(status.holders)

    def pushed(self, key: bytes) -> int:
        """How many notifications arrive of one grant."""
        first = Acquire(key, "first", "me", ttl=10)

        async def go() -> int:
            await self.faulty.open()
            second = Acquire(key, "second", "me", ttl=10, queue=True, inbox=self.faulty.inbox)
            await self.sound.apply([first, second, Release(key, "first")])
            found = await self.faulty.notifications(0.2)
            await self.faulty.close()
            return len(found)

        return self.run(go())


@pytest.fixture(params=["async", "blocking"])
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)


@pytest.mark.parametrize(
    ("fault", "at_once", "later"),
    [("down", 0, 0), ("lose_request", 0, 0), ("lose_reply", 1, 1), ("late_request", 0, 1)],
)
def test_a_call_that_fails_may_be_applied(rig: Rig, fault: str, at_once: int, later: int) -> None:
    setattr(rig.faults, fault, True)
    with pytest.raises(BackendUnavailable, match=r"injected|reply|late"):
        rig.ask(TAKE)
    assert rig.holders() == at_once
    assert rig.faults.hits == {fault: 1}
    setattr(rig.faults, fault, False)
    assert len(rig.ask(Inspect(KEY)).holders) == later


def test_a_doubled_request_is_answered_once_even_if_it_is_delayed(rig: Rig) -> None:
    rig.faults.double = rig.faults.delay = 1.0
    rig.faults.longest_delay = 0.02
    assert isinstance(rig.ask(TAKE), Granted)
    assert rig.faults.hits["delay"] == 1
    assert rig.ask(Release(KEY, "a")) == Released()
    assert rig.run(rig.sound.apply([Release(KEY, "a")])) == [Unknown()]


def test_an_echo_comes_again_later(rig: Rig) -> None:
    rig.faults.echo = 1.0
    rig.ask(TAKE)
    rig.faults.echo = 0.0
    rig.run(rig.sound.apply([Release(KEY, "a")]))
    rig.ask(Renew(KEY, "other", 10))
    assert rig.holders() == 1


@pytest.mark.parametrize(
    ("fault", "count"),
    [("seed", 1), ("drop_notification", 0), ("double_notification", 2), ("late_notification", 0)],
)
def test_notifications(rig: Rig, fault: str, count: int) -> None:
    setattr(rig.faults, fault, True)
    assert rig.pushed(KEY) == count
    setattr(rig.faults, fault, False)
    assert rig.pushed(b"lock:b") == (2 if fault == "late_notification" else 1)


def test_scan_and_open_suffer_too(rig: Rig) -> None:
    rig.faults.down = True
    with pytest.raises(BackendUnavailable):
        rig.run(rig.faulty.scan(b"", None, 10))
    with pytest.raises(BackendUnavailable):
        rig.run(rig.faulty.open())
    rig.faults.down = False
    rig.run(rig.faulty.open())
    assert not rig.run(rig.faulty.scan(b"", None, 10)).items


def test_one_seed_one_run() -> None:
    def draw(seed: int) -> list[bool]:
        faults = Faults(seed=seed, lose_reply=0.5)
        return [faults.strikes("lose_reply") for _ in range(64)]

    assert draw(1) == draw(1) != draw(2)
    store = FaultyStore("memory://")  # by URL
    store.faults.down = True
    with pytest.raises(BackendUnavailable):
        store.blocking_connection().apply([TAKE], 10)
