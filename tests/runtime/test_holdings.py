"""What each holder has is found by the holder, whoever else holds whatever, and nothing is left of it."""

import asyncio
import gc
import threading
from typing import Any
from weakref import ref

from dibs.locks.deadlock import DeadlockDetector
from dibs.runtime.holding import HeldByOwner
from tests.locks.waits import pause
from tests.locks.worlds import World


class Thing:
    """A lease, or a holder, as far as it matters here."""

    _id = "id"
    _options = None
    _stands = True

    async def _still_stands(self) -> bool:
        return True


def test_neither_lease_nor_former_holder_is_kept_alive() -> None:
    holdings, me, lease = HeldByOwner(), Thing(), Thing()
    holdings.put(b"a", me, lease)
    known = ref(lease)
    del lease
    gc.collect()
    assert known() is None
    assert holdings.of(me) == []
    holdings.drop(b"a", me, Thing())  # whoever comes by finds it dead
    former = ref(me)
    del me
    gc.collect()
    assert former() is None


def test_threads_find_what_they_hold_while_others_come_and_go() -> None:
    holdings, missing = HeldByOwner(), list[str]()
    begin = threading.Barrier(4)

    def work(number: int) -> None:
        me, kept = threading.current_thread(), Thing()
        begin.wait(30)
        for turn in range(3000):
            key, lease = b"%d of %d" % (turn, number), Thing()
            holdings.put(b"kept", me, kept)
            holdings.put(key, me, lease)
            if {*holdings.of(me)} != {kept, lease}:
                missing.append(f"turn {turn} of {number}")
            holdings.drop(key, me, lease)
            holdings.drop(b"kept", me, kept)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert missing == []
    assert len(holdings) == 0


async def test_who_holds_nothing_looks_for_nothing_however_many_others_hold(
    monkeypatch: Any,
) -> None:
    """Counted: what the waiters do besides waiting, and what those see who do."""
    w = World("async")
    detectors, seen = 0, list[int]()
    init, look = DeadlockDetector.__init__, DeadlockDetector.look

    def counting(self: DeadlockDetector, *about: Any) -> None:
        nonlocal detectors
        detectors += 1
        init(self, *about)

    async def looking(self: DeadlockDetector, place: str) -> None:
        await look(self, place)
        seen.append(len(self._held or ()))

    monkeypatch.setattr(DeadlockDetector, "__init__", counting)
    monkeypatch.setattr(DeadlockDetector, "look", looking)
    busy = await w.another().lock("busy", ttl=600).acquire()
    client, over = w.client, asyncio.Event()

    async def hold(number: int) -> None:
        async with client.lock(f"held {number}", ttl=600):
            await over.wait()

    async def hold_and_wait() -> None:
        async with client.lock("mine", ttl=600), client.lock("busy", ttl=600):
            pass

    async def wait() -> None:
        async with client.lock("busy", ttl=600):
            pass

    tasks = [asyncio.create_task(hold(number)) for number in range(60)]
    tasks += [asyncio.create_task(wait()) for _ in range(60)]
    tasks.append(asyncio.create_task(hold_and_wait()))
    while (await w.client.lock("busy").status()).waiting < 61:
        await pause(w)
    for _ in range(8):
        w.clock.advance(0.5)
        for _ in range(5):
            await pause(w)
    assert (detectors, set(seen)) == (1, {1})
    over.set()
    await busy.release()
    await asyncio.gather(*tasks)
