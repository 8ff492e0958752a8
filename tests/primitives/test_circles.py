"""Who waits for each other is told: the right one, all of it, and nobody who is in no circle."""

import asyncio
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from leasehold import AcquireTimeout, BackendUnavailable, Deadlock
from leasehold.core.names import fingerprint, wait_key
from leasehold.core.waits import Wait, written
from leasehold.model import MANY, Holder, Inspect, Status, Waiter
from leasehold.primitives.circles import Detective, _advert, _in_the_way
from tests.primitives.test_on_wait import FullStore
from tests.primitives.waits import Beside, pause, time_passes, until, until_queued
from tests.primitives.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore


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
    rt = client.hub.loop_runtime() if hasattr(client, "attach") and is_async(client) else None
    rt = rt or client.hub.thread_runtime()
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


# ---- circles --------------------------------------------------------------------------------------


@in_both_worlds
async def test_of_two_processes_the_one_that_began_last_gives_way(w: World) -> None:
    one, two = w.client, w.another()
    crossers = await ring(
        w,
        (one.lock("a", label="one"), one.lock("b", label="one")),
        (two.lock("b", label="two"), two.lock("a", label="two")),
    )
    assert await time_passes(w, all_done(crossers)) < 4
    assert await outcomes(crossers) == [None, Deadlock]
    error = await crossers[1].beside.error()
    assert isinstance(error, Deadlock)
    told = str(error)
    assert "/two holds b and waits for a; " in told
    assert "/one holds a and waits for b: none of these waits can end" in told
    assert error.key == b"lock:a"
    assert crossers[1].left
    assert {holder.token for holder in error.holders} == {each.held.token for each in crossers}
    assert str(pickle.loads(pickle.dumps(error))) == told
    await nothing_left(w, *crossers)
    assert (await w.get(w.client.status("a"))).waiting == 0


@in_both_worlds
async def test_of_two_tasks_or_threads_of_one_client(w: World) -> None:
    c = w.client
    crossers = await ring(w, (c.lock("a"), c.lock("b")), (c.lock("b"), c.lock("a")))
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, Deadlock]
    await nothing_left(w, *crossers)


@in_both_worlds
async def test_a_longer_circle_is_named_in_full(w: World) -> None:
    names = "abcde"
    clients = [w.another() for _ in names]
    pairs = [
        (client.lock(mine, label=f"p{mine}"), client.lock(theirs, label=f"p{mine}"))
        for client, mine, theirs in zip(clients, names, names[1:] + names[0], strict=True)
    ]
    crossers = await ring(w, *pairs)
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None] * 4 + [Deadlock]
    told = str(await crossers[-1].beside.error())
    assert [told.index(f"/p{name} holds {name} and waits") for name in "eabcd"] == sorted(
        told.index(f"/p{name} holds {name} and waits") for name in names
    )
    await nothing_left(w, *crossers)


@in_both_worlds
async def test_readers_and_writers_can_be_in_one(w: World) -> None:
    one, two = w.client, w.another()
    crossers = await ring(
        w,
        (one.rwlock("r").read(), one.rwlock("q").write()),
        (two.rwlock("q").read(), two.rwlock("r").write()),
    )
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, Deadlock]
    assert "holds rwlock q and waits for rwlock r" in str(await crossers[1].beside.error())


@in_both_worlds
async def test_several_readers_are_each_followed(w: World) -> None:
    """A writer waits for two readers, and only the second of them waits for it."""
    bystander = await w.get(w.another().rwlock("r").read().acquire())
    one, two = w.client, w.another()
    crossers = await ring(
        w,
        (one.rwlock("r").read(), one.lock("a")),
        (two.lock("a"), two.rwlock("r").write()),
    )
    await time_passes(w, lambda: crossers[1].done)
    assert isinstance(await crossers[1].beside.error(), Deadlock)
    await crossers[0].beside.result()
    await w.get(bystander.release())


@in_both_worlds
async def test_two_circles_are_each_opened_once(w: World) -> None:
    clients = [w.another() for _ in range(4)]
    locks = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]
    crossers = await ring(
        w, *((c.lock(x), c.lock(y)) for c, (x, y) in zip(clients, locks, strict=True))
    )
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, Deadlock, None, Deadlock]


async def knot(w: World, order: str) -> dict[str, Any]:
    """`t` waits for two readers, `p` and `q`, and each of them waits for it; how each ended."""
    clients = {name: w.another() for name in order}
    pairs = {
        name: (c.lock("a"), c.rwlock("r").write())
        if name == "t"
        else (c.rwlock("r").read(), c.lock("a"))
        for name, c in clients.items()
    }
    crossers = [Crosser(w, *pairs[name]) for name in order]
    for each in crossers:
        await until(w, lambda each=each: each.held is not None)  # type: ignore[misc]
    queued = {"a": 0, "r": 0}
    for name, each in zip(order, crossers, strict=True):
        each.may_go = True
        key = "r" if name == "t" else "a"
        queued[key] += 1
        await until_queued(w, key, queued[key], "rwlock" if name == "t" else "lock")
        w.clock.advance(0.1)
    await time_passes(w, all_done(crossers))
    found = dict(zip(order, await outcomes(crossers), strict=True))
    await nothing_left(w, *crossers)
    return found


@in_both_worlds
async def test_the_youngest_of_two_circles_through_one_task_opens_both(w: World) -> None:
    assert await knot(w, "pqt") == {"p": None, "q": None, "t": Deadlock}


@in_both_worlds
async def test_two_circles_that_only_the_oldest_has_in_common_are_each_opened(w: World) -> None:
    assert await knot(w, "tpq") == {"t": None, "p": Deadlock, "q": Deadlock}


@in_both_worlds
async def test_whoever_is_not_the_youngest_of_one_circle_gives_way_in_the_other(w: World) -> None:
    found = await knot(w, "ptq")  # `q` may or may not have to, as that depends on who looks first
    assert (found["p"], found["t"]) == (None, Deadlock)


async def test_whoever_waited_for_a_place_in_the_queue_has_waited_since_then() -> None:
    w = World("async")
    store = FullStore(w)
    one, two = w.another(store), w.another()
    older = Crosser(w, one.lock("b", ttl=60), one.lock("a", ttl=60))
    younger = Crosser(w, two.lock("a", ttl=60), two.lock("b", ttl=60))
    await until(w, lambda: older.held is not None and younger.held is not None)
    older.may_go = True
    await until(w, lambda: store.refused > 0)
    w.clock.advance(0.5)
    younger.may_go = True
    await until_queued(w, "b", 1)
    w.clock.advance(0.25)
    store.full = False
    await time_passes(w, all_done([older, younger]))
    assert await outcomes([older, younger]) == [None, Deadlock]


@in_both_worlds
async def test_who_gives_way_can_begin_again(w: World) -> None:
    one, two = w.client, w.another()
    crossers = await ring(w, (one.lock("a"), one.lock("b")), (two.lock("b"), two.lock("a")))
    await time_passes(w, all_done(crossers))
    again = Crosser(w, two.lock("b"), two.lock("a"))
    again.may_go = True
    await time_passes(w, lambda: again.done)
    await again.beside.result()


# ---- none -----------------------------------------------------------------------------------------


@in_both_worlds
async def test_a_chain_is_no_circle(w: World) -> None:
    one, two = w.client, w.another()
    end = await w.get(w.another().lock("c").acquire())
    crossers = await ring(w, (one.lock("a"), one.lock("b")), (two.lock("b"), two.lock("c")))
    for _ in range(60):
        w.clock.advance(0.5)
        await pause(w)
    assert not any(each.done for each in crossers)
    await w.get(end.release())
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, None]
    await nothing_left(w, *crossers)


@in_both_worlds
async def test_it_can_be_switched_off(w: World) -> None:
    one, two = w.client, w.another()
    off = {"detect_deadlocks": False}
    crossers = await ring(
        w,
        (one.lock("a"), one.lock("b", **off)),
        (two.lock("b"), two.lock("a", **off)),
        wait=8,
    )
    await time_passes(w, all_done(crossers))
    assert AcquireTimeout in await outcomes(crossers)
    assert Deadlock not in await outcomes(crossers)


@in_both_worlds
async def test_a_time_out_withdraws_what_was_told(w: World) -> None:
    one = w.client
    end = await w.get(w.another().lock("b").acquire())
    crossers = await ring(w, (one.lock("a"), one.lock("b")), wait=6)
    advert = wait_key(fingerprint(crossers[0].held._id))
    seen = 0
    while not crossers[0].done:
        w.clock.advance(0.25)
        await pause(w)
        seen += len((await ask(w.client, Inspect(advert))).holders)
    assert seen, "it was told while it waited"
    assert await outcomes(crossers) == [AcquireTimeout]
    await nothing_left(w, *crossers)
    await w.get(end.release())


@in_both_worlds
async def test_no_list_shows_what_is_told(w: World) -> None:
    one = w.client
    end = await w.get(w.another().lock("b").acquire())
    crossers = await ring(w, (one.lock("a"), one.lock("b")))
    advert = wait_key(fingerprint(crossers[0].held._id))
    while not (await ask(w.client, Inspect(advert))).holders:
        w.clock.advance(0.25)
        await pause(w)
    listed = one.list()
    found = [each async for each in listed] if w.is_async else list(listed)
    assert sorted(each.key for each in found) == [b"lock:a", b"lock:b"]
    await w.get(end.release())
    await crossers[0].beside.result()


async def test_a_cancelled_wait_withdraws_what_was_told() -> None:
    w = World("async")
    end = await w.another().lock("b").acquire()
    crossers = await ring(w, (w.client.lock("a"), w.client.lock("b")))
    for _ in range(8):
        w.clock.advance(0.25)
        await pause(w)
    task = crossers[0].beside._task
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await nothing_left(w, *crossers)
    await end.release()


async def test_the_adverts_of_a_dead_process_end_by_themselves() -> None:
    w = World("async")
    rt = w.client.hub.loop_runtime()
    held = await w.client.lock("a", ttl=10).acquire()
    detective = Detective(rt, w.client.lock("b", ttl=10)._describe_here()[0], w.clock.now())
    await detective.look("place")  # and then it is never heard of again
    advert = wait_key(fingerprint(held._id))
    assert len((await ask(w.client, Inspect(advert))).holders) == 1
    w.clock.advance(10)
    assert (await ask(w.client, Inspect(advert))).holders == ()
    await held.release()


async def test_nobody_who_waits_briefly_or_holds_nothing_asks_anything_more() -> None:
    w = World("async")
    store = TappedStore(store=w.store)
    client = w.another(store)
    ends = [await w.another().lock(name, ttl=600).acquire() for name in "bc"]
    idle = asyncio.create_task(client.lock("c", ttl=600).acquire())
    crossers = await ring(w, (client.lock("a", ttl=600), client.lock("b", ttl=600)))
    w.clock.advance(0.8)
    for _ in range(20):
        await pause(w)
    sent = [each for batch in (*store.batches, *store.kept) for each in batch]
    assert all(each.key.startswith(b"lock:") for each in sent)
    assert not any(isinstance(each, Inspect) for each in sent)
    await ends[0].release()
    await crossers[0].beside.result()
    for _ in range(40):
        w.clock.advance(0.5)
        await pause(w)
    sent = [each for batch in (*store.batches, *store.kept) for each in batch]
    assert all(each.key.startswith(b"lock:") for each in sent)
    await ends[1].release()
    await (await idle).release()


async def test_a_store_that_is_away_while_it_looks_ends_no_wait() -> None:
    w = World("async")
    store = TappedStore(store=w.store)
    client = w.another(store)
    failed = 0

    def fail(commands: Any) -> None:
        nonlocal failed
        if any(command.key.startswith(b"wait:") for command in commands):
            failed += 1
            raise BackendUnavailable("planted")

    store.before = fail
    end = await w.another().lock("b").acquire()
    crossers = await ring(w, (client.lock("a"), client.lock("b")))
    for _ in range(30):
        w.clock.advance(0.5)
        await pause(w)
    assert failed >= 3
    assert not crossers[0].done
    await end.release()
    await crossers[0].beside.result()


async def test_many_who_take_two_in_the_same_order_are_never_told_of_a_circle() -> None:
    w = World("async")
    clients = [w.another() for _ in range(6)]
    names, chance = "abcdef", random.Random(4)
    store_reads = 0
    original = Detective._read

    async def counting(self: Detective, key: bytes) -> Status:
        nonlocal store_reads
        store_reads += 1
        return await original(self, key)

    async def work(number: int) -> None:
        client = clients[number % len(clients)]
        for _ in range(3):
            first, second = sorted(chance.sample(names, 2))
            async with client.lock(first), client.lock(second):
                end = w.clock.now() + chance.uniform(0.5, 3)
                await until(w, lambda end=end: w.clock.now() >= end)  # type: ignore[misc]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Detective, "_read", counting)
        tasks = [asyncio.create_task(work(number)) for number in range(24)]
        await time_passes(w, lambda: all(task.done() for task in tasks), step=0.5)
        await asyncio.gather(*tasks)
    assert store_reads > 20, "nobody looked, so nothing was shown"


# ---- what is believed -----------------------------------------------------------------------------


async def broken_between(w: World, monkeypatch: pytest.MonkeyPatch, act: Any) -> list[Crosser]:
    """A circle, in which `act` is done each time after the first reading has found it."""
    readings = 0
    find = Detective._find

    async def reading(self: Detective, wait: Wait) -> Any:
        nonlocal readings
        found = await find(self, wait)
        if found is not None and found[-1].advert.began == max(s.advert.began for s in found):
            readings += 1
            if readings == 1:
                await act()
        return found

    monkeypatch.setattr(Detective, "_find", reading)
    one, two = w.client, w.another()
    return await ring(w, (one.lock("a"), one.lock("b")), (two.lock("b"), two.lock("a")))


async def test_a_circle_that_was_opened_between_the_readings_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = World("async")
    opened = False

    async def open_it() -> None:
        nonlocal opened
        opened = True
        await crossers[0].held.release()

    crossers: list[Crosser] = []
    crossers += await broken_between(w, monkeypatch, open_it)
    await time_passes(w, all_done(crossers))
    assert opened
    assert await outcomes(crossers) == [None, None]


@pytest.mark.parametrize("what", ["hold", "advert"])
async def test_one_of_other_leases_of_the_same_keys_is_another(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """What is held was given up and taken again between the readings: it never stood at one time."""
    w = World("async")
    readings, find = 0, Detective._find

    async def reading(self: Detective, wait: Wait) -> Any:
        nonlocal readings
        found = await find(self, wait)
        if found is None or max(step.advert.began for step in found) > found[-1].advert.began:
            return found
        readings += 1
        if readings % 2 or readings > 2:
            return found
        first, *rest = found
        if what == "hold":
            first = first._replace(hold=replace(first.hold, lease="another"))
        else:
            first = first._replace(advert=first.advert._replace(lease="another"))
        return (first, *rest)

    monkeypatch.setattr(Detective, "_find", reading)
    one, two = w.client, w.another()
    crossers = await ring(w, (one.lock("a"), one.lock("b")), (two.lock("b"), two.lock("a")))
    await time_passes(w, lambda: readings == 2)
    assert not any(each.done for each in crossers)
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, Deadlock]
    assert readings == 4, "it was read twice again, and stood"


async def test_a_grant_that_comes_as_it_begins_to_look_is_not_missed() -> None:
    w = World("async")
    end = await w.another().lock("b", ttl=600).acquire()
    crossers = await ring(w, (w.client.lock("a", ttl=600), w.client.lock("b", ttl=600)))
    for _ in range(20):
        await pause(w)
    await end.release()  # it is pushed, and before the push is read …
    w.clock.advance(1)  # … the time has come to look
    await crossers[0].beside.result()


PLACE = Waiter("place", "me", 1, 0, 1.0)


def holder(units: int = 1, state: Any = "held") -> Holder:
    return Holder("fp", "they", 7, units, (), 1.0, 1.0, "", state)


@pytest.mark.parametrize(
    ("capacity", "wanted", "hold", "counts"),
    [
        (1, 1, holder(), True),
        (1, 1, holder(state="unclaimed"), True),
        (1, 1, holder(state="kept"), False),  # it ends by itself
        (1, 1, holder(state="revoked"), False),
        (2, 1, holder(), False),  # another one's leaving would do
        (2, 2, holder(), True),
        (4, 2, holder(2), False),
        (4, 2, holder(3), True),
        (MANY, MANY, holder(), True),  # a writer waits for each reader
        (MANY, 1, holder(), False),  # a reader waits in the queue behind a writer, not for readers
        (MANY, 1, holder(MANY), True),
    ],
)
def test_only_who_must_leave_is_in_the_way(
    capacity: int, wanted: int, hold: Holder, counts: bool
) -> None:
    status = Status(b"k", capacity, (hold,), (PLACE,), 1)
    assert bool(_in_the_way(status, Wait(b"k", wanted, "place"), is_ours=False)) is counts


def test_who_is_no_longer_in_the_queue_waits_for_nobody() -> None:
    gone = Wait(b"k", 1, "another")
    few, many = (Status(b"k", 1, (holder(),), (PLACE,), waiting) for waiting in (1, 200))
    assert not _in_the_way(few, gone, is_ours=False)
    assert not _in_the_way(few, gone, is_ours=True)
    assert not _in_the_way(many, gone, is_ours=False), "it may have left its advert behind"
    assert _in_the_way(many, gone, is_ours=True), "behind those who are named"


def test_an_advert_is_read_as_it_was_written() -> None:
    wait = Wait(b"lock:\x00\xff a", 3, "place")

    def told(token: int, note: str) -> Holder:
        return Holder(f"fp{token}", "they", token, 1, (), 1.0, 1.0, note)

    first = _advert(Status(b"k", MANY, (told(5, written(wait, 0)),)))
    assert first is not None
    assert (first.lease, first.began, first.wait) == ("fp5", 5, wait)
    again = _advert(Status(b"k", MANY, (told(5, written(wait, 0)), told(9, written(wait, 5)))))
    assert again is not None
    assert (again.lease, again.began) == ("fp9", 5), "the newest, which began with the first"
    late = _advert(Status(b"k", MANY, (told(5_000_000, written(wait, -1_000_000)),)))
    assert late is not None
    assert late.began == 4_000_000, "it had waited for a second"
    assert _advert(Status(b"k", MANY, (told(5, "what a later release may write"),))) is None
    assert _advert(Status(b"k", MANY)) is None


async def test_a_member_of_a_cohort_that_gives_way_leaves_its_place_to_the_next() -> None:
    w = World("async")
    one, two = w.client, w.another()
    held = await two.lock("b").acquire()
    crossers = await ring(w, (one.lock("a"), one.lock("b")))
    next_in_line = None

    async def wait_behind_us(waiting: Any) -> None:
        nonlocal next_in_line
        if next_in_line is None:
            next_in_line = Beside(w, lambda: acquire_and_release(two.lock("a", cohort=5)))

    acquiring = two.lock("a", cohort=5).acquire(on_wait=wait_behind_us)
    waiting = asyncio.create_task(acquiring)
    # as if that task had acquired it
    two.hub.loop_runtime().holding.put(b"lock:b", waiting, held)
    await until(w, lambda: next_in_line is not None)
    place = (await w.client.status("a")).waiters[0].lease
    await time_passes(w, waiting.done)
    with pytest.raises(Deadlock):
        await waiting
    for _ in range(20):
        await pause(w)
    assert [waiter.lease for waiter in (await w.client.status("a")).waiters] == [place]
    await held.release()
    await crossers[0].beside.result()
    assert next_in_line is not None
    await next_in_line.result()


async def acquire_and_release(lock: Any) -> None:
    async with lock:
        pass


def test_an_acquire_tells_by_default_and_only_then() -> None:
    w = World("async")
    assert w.client.lock("a")._describe_here()[0].detects
    assert not w.client.lock("a", detect_deadlocks=False)._describe_here()[0].detects
    with pytest.raises(TypeError, match="detect_deadlocks is 1: give True or False"):
        w.client.lock("a", detect_deadlocks=1)


@in_both_worlds
async def test_who_takes_all_of_several_can_be_in_one_with_others(w: World) -> None:
    """It holds the first of its keys, and waits for the second."""
    one, two = w.client, w.another()
    last = await w.get(two.lock("b").acquire())

    async def all_of_them() -> None:
        leases = await w.get(w.module.AllOf(one.lock("a"), one.lock("b")).acquire())
        await w.get(leases.release())

    taking = Beside(w, all_of_them)
    await until_queued(w, "b", 1)
    w.clock.advance(0.1)

    async def back_to_front() -> None:
        last.adopt()
        await w.get(two.lock("a").acquire())

    waiting = Beside(w, back_to_front)
    await time_passes(w, lambda: waiting.done)
    assert isinstance(await waiting.error(), Deadlock)
    await w.get(last.release())
    await time_passes(w, lambda: taking.done)
    await taking.result()


@in_both_worlds
async def test_what_is_held_more_than_once_counts_too(w: World) -> None:
    one, two = w.client, w.another()
    crossers = await ring(
        w,
        (one.lock("a", reentrant=True), one.lock("b", reentrant=True)),
        (two.lock("b", reentrant=True), two.lock("a", reentrant=True)),
    )
    await time_passes(w, all_done(crossers))
    assert await outcomes(crossers) == [None, Deadlock]


@in_both_worlds
async def test_who_waits_to_upgrade_can_be_in_one(w: World) -> None:
    """It reads, and waits for another reader to leave, who waits for a lock that it holds."""
    get, one, two = w.get, w.client, w.another()
    leases: list[Any] = []
    may_go = False

    async def upgrade() -> None:
        lock, reading = (
            await get(one.lock("a").acquire()),
            await get(one.rwlock("r").read().acquire()),
        )
        leases.append(reading)
        try:
            await until(w, lambda: may_go)
            await get(reading.upgrade())
        finally:
            await get(reading.release())
            await get(lock.release())

    upgrading = Beside(w, upgrade)
    await until(w, lambda: bool(leases))
    crossers = await ring(w, (two.rwlock("r").read(), two.lock("a")))
    may_go = True
    await until_queued(w, "r", 1, "rwlock")
    await time_passes(w, lambda: upgrading.done)
    error = await upgrading.error()
    assert isinstance(error, Deadlock)
    assert "holds a and waits for rwlock r" in str(error)
    await crossers[0].beside.result()
    await nothing_left(w, *crossers)
    assert not (await get(w.client.status("r", "rwlock"))).waiters


@in_both_worlds
async def test_who_waits_long_to_upgrade_is_in_no_circle_of_its_own(w: World) -> None:
    reader = await w.get(w.another().rwlock("r").read().acquire())
    leases: list[Any] = []

    async def upgrade() -> None:
        leases.append(await w.get(w.client.rwlock("r").read().acquire()))
        await w.get(leases[0].upgrade())

    upgrading = Beside(w, upgrade)
    await until_queued(w, "r", 1, "rwlock")
    for _ in range(30):
        w.clock.advance(0.25)
        await pause(w)
    assert not upgrading.done
    await w.get(reader.release())
    await time_passes(w, lambda: upgrading.done)
    await upgrading.result()
    assert leases[0].mode == "write"
    while (await ask(w.client, Inspect(wait_key(fingerprint(leases[0]._id))))).holders:
        await pause(w)
    await w.get(leases[0].release())
