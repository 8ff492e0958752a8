"""Each fault does what it says, to the store and to the caller, for asyncio and for threads."""

from typing import Any

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Granted, Inspect, Release, Released, Renew, Unknown
from dibs.stores.registry import store_for
from dibs.testing import Faults, FaultyStore, ManualClock
from tests.stores.sides import Side, both_sides

KEY = b"lock:a"
TAKE = Acquire(KEY, "a", "me", ttl=10)


class Rig:
    """Connections to a store, one of which suffers its faults."""

    def __init__(self, sound: Any, faulty: Any, faults: Faults) -> None:
        self.sound, self.faulty, self.faults = sound, faulty, faults

    async def ask(self, command: Any) -> Any:
        return (await self.faulty.apply([command]))[0]

    async def holders(self) -> int:
        (status,) = await self.sound.apply([Inspect(KEY)])
        return len(status.holders)

    async def pushed(self, key: bytes) -> int:
        """How many notifications arrive of one grant."""
        first = Acquire(key, "first", "me", ttl=10)
        second = Acquire(key, "second", "me", ttl=10, queue=True, inbox=self.faulty.inbox)
        await self.sound.apply([first, second, Release(key, "first")])
        return len(await self.faulty.notifications(0.2))


async def rig(side: Side) -> Rig:
    store, faults = store_for("memory://", clock=ManualClock()), Faults()
    faulty = FaultyStore.around(store, faults)
    return Rig(await side.open(store), await side.open(faulty), faults)


@pytest.mark.parametrize(
    ("fault", "at_once", "later"),
    [("down", 0, 0), ("lose_request", 0, 0), ("lose_reply", 1, 1), ("late_request", 0, 1)],
)
@both_sides
async def test_a_call_that_fails_may_be_applied(
    side: Side, fault: str, at_once: int, later: int
) -> None:
    found = await rig(side)
    setattr(found.faults, fault, True)
    with pytest.raises(BackendUnavailable, match=r"injected|reply|late"):
        await found.ask(TAKE)
    assert await found.holders() == at_once
    assert found.faults.hits == {fault: 1}
    setattr(found.faults, fault, False)
    assert len((await found.ask(Inspect(KEY))).holders) == later


@both_sides
async def test_a_doubled_request_is_answered_once_even_if_it_is_delayed(side: Side) -> None:
    found = await rig(side)
    found.faults.double = found.faults.delay = 1.0
    found.faults.longest_delay = 0.02
    assert isinstance(await found.ask(TAKE), Granted)
    assert found.faults.hits["delay"] == 1
    assert await found.ask(Release(KEY, "a")) == Released()
    assert await found.sound.apply([Release(KEY, "a")]) == [Unknown()]


@both_sides
async def test_an_echo_comes_again_later(side: Side) -> None:
    found = await rig(side)
    found.faults.echo = 1.0
    await found.ask(TAKE)
    found.faults.echo = 0.0
    await found.sound.apply([Release(KEY, "a")])
    await found.ask(Renew(KEY, "other", 10))
    assert await found.holders() == 1


@pytest.mark.parametrize(
    ("fault", "count"),
    [("seed", 1), ("drop_notification", 0), ("double_notification", 2), ("late_notification", 0)],
)
@both_sides
async def test_notifications(side: Side, fault: str, count: int) -> None:
    found = await rig(side)
    setattr(found.faults, fault, True)
    assert await found.pushed(KEY) == count
    setattr(found.faults, fault, False)
    assert await found.pushed(b"lock:b") == (2 if fault == "late_notification" else 1)


@both_sides
async def test_scan_and_open_suffer_too(side: Side) -> None:
    found = await rig(side)
    found.faults.down = True
    for call in (lambda: found.faulty.scan(b"", None, 10), found.faulty.open):
        with pytest.raises(BackendUnavailable):
            await call()
    found.faults.down = False
    await found.faulty.open()
    assert not (await found.faulty.scan(b"", None, 10)).items


def test_one_seed_one_run() -> None:
    def draw(seed: int) -> list[bool]:
        faults = Faults(seed=seed, lose_reply=0.5)
        return [faults.strikes("lose_reply") for _ in range(64)]

    assert draw(1) == draw(1) != draw(2)
    store = FaultyStore("memory://")  # by URL
    store.faults.down = True
    with pytest.raises(BackendUnavailable):
        store.blocking_connection().apply([TAKE], 10)
