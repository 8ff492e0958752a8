"""Each fault does what it says, to the store and to the caller, in both worlds."""

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
    """A faulty and a sound connection to one store."""

    def __init__(self, faults: Faults, *, blocking: bool) -> None:
        store = store_for("memory://", clock=ManualClock())
        self.faults = faults
        mode: Mode = "blocking" if blocking else "async"
        self.faulty = connection_to(FaultyStore.around(store, faults), mode)
        self.sound = connection_to(store, mode)
        self.blocking = blocking

    def run[T](self, coro: Coroutine[Any, Any, T]) -> T:
        if not self.blocking:
            return asyncio.run(coro)
        try:
            coro.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        raise AssertionError("a blocking backend suspended")

    def holders(self) -> int:
        (status,) = self.run(self.sound.apply([Inspect(KEY)]))
        assert isinstance(status, Status)
        return len(status.holders)


def world(faults: Faults, mode: str) -> Rig:
    return Rig(faults, blocking=mode == "blocking")


def faulty(*names: str) -> Faults:
    """These faults, always."""
    always: dict[str, Any] = dict.fromkeys(names, True)
    return Faults(**always)


both = pytest.mark.parametrize("mode", ["async", "blocking"])


@both
def test_no_faults_by_default(mode: str) -> None:
    rig = world(Faults(), mode)
    assert isinstance(rig.run(rig.faulty.apply([TAKE]))[0], Granted)
    assert not rig.faults.hits


@both
@pytest.mark.parametrize("fault", ["down", "lose_request"])
def test_a_lost_request_changes_nothing(mode: str, fault: str) -> None:
    rig = world(faulty(fault), mode)
    with pytest.raises(BackendUnavailable, match="injected"):
        rig.run(rig.faulty.apply([TAKE]))
    assert rig.holders() == 0
    assert rig.faults.hits == {fault: 1}


@both
def test_a_lost_reply_is_applied(mode: str) -> None:
    rig = world(Faults(lose_reply=1.0), mode)
    with pytest.raises(BackendUnavailable, match="reply"):
        rig.run(rig.faulty.apply([TAKE]))
    assert rig.holders() == 1


@both
def test_a_late_request_comes_before_the_next(mode: str) -> None:
    rig = world(Faults(late_request=1.0), mode)
    with pytest.raises(BackendUnavailable, match="late"):
        rig.run(rig.faulty.apply([TAKE]))
    assert rig.holders() == 0
    rig.faults.late_request = 0.0
    (status,) = rig.run(rig.faulty.apply([Inspect(KEY)]))
    assert isinstance(status, Status)
    assert len(status.holders) == 1


@both
def test_a_doubled_request_is_answered_once(mode: str) -> None:
    rig = world(Faults(double=1.0), mode)
    assert isinstance(rig.run(rig.faulty.apply([TAKE]))[0], Granted)
    assert rig.run(rig.faulty.apply([Release(KEY, "a")])) == [Released()]
    assert rig.run(rig.sound.apply([Release(KEY, "a")])) == [Unknown()]


@both
def test_an_echo_comes_again_later(mode: str) -> None:
    rig = world(Faults(echo=1.0), mode)
    rig.run(rig.faulty.apply([TAKE]))
    rig.faults.echo = 0.0
    rig.run(rig.sound.apply([Release(KEY, "a")]))
    rig.run(rig.faulty.apply([Renew(KEY, "other", 10)]))
    assert rig.holders() == 1


@both
def test_delays_take_no_longer_than_they_may(mode: str) -> None:
    rig = world(Faults(delay=1.0, longest_delay=0.02), mode)
    assert isinstance(rig.run(rig.faulty.apply([TAKE]))[0], Granted)
    assert rig.faults.hits["delay"] == 1


def pushed(rig: Rig, key: bytes = KEY) -> int:
    """How many pushes arrive of one grant."""
    first = Acquire(key, "first", "me", ttl=10)

    async def go() -> int:
        await rig.faulty.open()
        second = Acquire(key, "second", "me", ttl=10, queue=True, inbox=rig.faulty.inbox)
        await rig.sound.apply([first, second, Release(key, "first")])
        found = await rig.faulty.notifications(0.2)
        await rig.faulty.close()
        return len(found)

    return rig.run(go())


@both
@pytest.mark.parametrize(
    ("fault", "count"),
    [("seed", 1), ("drop_notification", 0), ("double_notification", 2), ("late_notification", 0)],
)
def test_pushes(mode: str, fault: str, count: int) -> None:
    rig = world(faulty(fault), mode)
    assert pushed(rig) == count


@both
def test_a_late_push_comes_with_a_later_call(mode: str) -> None:
    rig = world(Faults(late_notification=1.0), mode)
    assert pushed(rig) == 0

    rig.faults.late_notification = 0.0
    assert pushed(rig, b"lock:b") == 2


@both
def test_scan_and_open_suffer_too(mode: str) -> None:
    rig = world(Faults(down=True), mode)
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


def test_a_store_by_url_can_be_made_faulty() -> None:
    store = FaultyStore("memory://")
    store.faults.down = True
    assert store.capabilities.scope == "process"
    with pytest.raises(BackendUnavailable):
        store.blocking_connection().apply([TAKE], 10)
