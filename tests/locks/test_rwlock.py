"""Readers, writers, and leases that change from one to the other."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import dibs.sync
from dibs import BackendUnavailable, Client, NotHeld, Reentrant
from dibs.errors import AcquireTimeout, LeaseLost
from dibs.model import MANY, Acquire, Command, Granted, Release, Resize
from dibs.runtime.port import TimedReply
from dibs.session import StoreSession
from dibs.stores.memory import MemoryStore
from dibs.testing import ManualClock, expire, steal
from tests.locks.waits import Beside, Holder, pause, until_queued
from tests.locks.worlds import World, heal, in_both_worlds, site
from tests.runtime.stores import TappedStore
from tests.sampling import examples


def failing(when: Callable[[Command], bool]) -> Callable[[Sequence[Command]], None]:
    def fail(commands: Sequence[Command]) -> None:
        if any(when(command) for command in commands):
            raise BackendUnavailable("planted")

    return fail


def resizes(command: Command) -> bool:
    return isinstance(command, Resize)


async def units(w: World) -> list[int]:
    """What the store has: how many units each holder."""
    status = await w.get(w.client.status("a", "rwlock"))
    return [holder.units for holder in status.holders]


async def test_an_upgrade_waits_in_front_and_asks_no_more_often_than_any_waiter() -> None:
    w = World("async")
    store, client = site(w)
    lock = client.rwlock("a", ttl=30)
    other = Holder(w, w.another().rwlock("a", ttl=30).read())
    await other.holds()
    lease = await w.get(lock.read().acquire())

    async def upgrade() -> None:
        lease.adopt()
        await w.get(lease.upgrade())

    upgrading = Beside(w, upgrade)
    await until_queued(w, "a", 1, "rwlock")
    newcomer = Holder(w, w.another().rwlock("a", ttl=30).read())
    await until_queued(w, "a", 2, "rwlock")
    asked: list[Command] = []
    store.before = asked.extend
    for _ in range(150):
        w.clock.advance(0.4)
        await pause(w)
    heartbeats = [command for command in asked if isinstance(command, Acquire)]
    assert 15 < len(heartbeats) < 60, "one every third of a claim timeout"
    assert not any(isinstance(command, Resize) for command in asked)
    places = (await w.get(w.client.status("a", "rwlock"))).waiters
    assert places[0].note == "waits to upgrade the lease that it reads under"
    await other.lets_go()
    await upgrading.result()  # although the clock stands still
    assert lease.mode == "write"
    assert not newcomer.settled
    await w.get(lease.release())
    await newcomer.holds()
    await newcomer.lets_go()


@in_both_worlds
async def test_a_reader_that_wants_to_write_gets_advice(w: World) -> None:
    lock = w.client.rwlock("a")
    lease = await w.get(lock.read().acquire())
    with pytest.raises(Reentrant, match=r"upgrade\(\) the lease that is held"):
        await w.get(lock.write().acquire())
    with pytest.raises(Reentrant, match="pass the lease on"):
        await w.get(lock.read().acquire(wait=5))
    with pytest.raises(AcquireTimeout, match="by this task or thread"):
        await w.get(lock.write().acquire(wait=0))
    other = w.another().rwlock("a")
    for side in (other.read(), other.write()):
        with pytest.raises(ValueError, match="a reader takes one, a writer all"):
            await w.get(side.acquire(units=2))
    await w.get(lease.release())
    for change in (lease.upgrade, lease.downgrade):
        with pytest.raises(NotHeld):
            await w.get(change())
    await w.get((await w.get(lock.write().acquire())).release())


@in_both_worlds
async def test_a_test_can_let_it_expire_or_have_it_stolen(w: World) -> None:
    lock = w.client.rwlock("a")
    lease = await w.get(lock.read().acquire())
    assert expire(lock) == 1
    assert lease.lost
    assert not await w.get(lock.locked())
    other = await w.get(lock.read().acquire())
    assert steal(lock) > other.token
    assert other.lost
    assert await w.get(lock.read().try_acquire()) is None, "a thief is alone"


@pytest.mark.parametrize("name", ["async", "sync"])
def test_the_lock_itself_is_not_entered(name: str) -> None:
    lock = World(name).module.RWLock("a", wait=5, note="why")
    assert lock.read().config == lock.write().config == lock.config
    assert lock.read().key == lock.write().key == lock.key == b"rwlock:a"
    assert repr(lock) == "<RWLock rwlock a>"
    with pytest.raises(TypeError, match=r"`with RWLock\('a'\).read\(\)` or"):
        lock.__enter__()
    with pytest.raises(TypeError, match=r"`async with RWLock\('a'\).read\(\)` or"):
        asyncio.run(lock.__aenter__())


@in_both_worlds
async def test_an_uncontended_cycle_is_two_commands_and_a_change_is_one(w: World) -> None:
    store, client = site(w)
    sent: list[type[Command]] = []
    store.before = lambda commands: sent.extend(map(type, commands))
    lock = client.rwlock("a")
    await w.get((await w.get(lock.write().acquire())).release())
    reader = await w.get(lock.read().acquire())
    await w.get(reader.downgrade())
    await w.get(reader.upgrade())
    first = reader.token
    await w.get(reader.upgrade())
    assert reader.token == first
    await w.get(reader.release())
    assert sent == [Acquire, Release, Acquire, Resize, Release], "nothing is asked in vain"


# -- faults -----------------------------------------------------------------------------------------


async def upgraded_in_vain(w: World, store: TappedStore, lease: Any) -> None:
    """The store has made it the writer, and goes away before anybody hears of it."""

    def fail(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Resize) for command in commands):
            store.before = failing(lambda _: True)
            raise BackendUnavailable("planted")

    store.after = fail
    with pytest.raises(BackendUnavailable):
        await w.get(lease.upgrade(wait=0))
    assert lease.mode == "read"
    assert await units(w) == [MANY]


@pytest.mark.parametrize("auto_renew", [True, False])
@in_both_worlds
async def test_an_upgrade_whose_answer_is_lost_is_taken_back(w: World, auto_renew: bool) -> None:
    store, client = site(w)
    lease = await w.get(client.rwlock("a", auto_renew=auto_renew).read().acquire())
    await upgraded_in_vain(w, store, lease)
    w.clock.advance(6)
    assert await units(w) == [MANY]
    heal(store)
    w.clock.advance(2)
    assert await units(w) == [1]
    assert not lease.lost
    w.clock.advance(60)
    assert lease.lost is not auto_renew
    await w.get(lease.release())


@in_both_worlds
async def test_a_second_try_finds_that_the_first_was_granted(w: World) -> None:
    store, client = site(w)
    lease = await w.get(client.rwlock("a").read().acquire())
    await upgraded_in_vain(w, store, lease)
    heal(store)
    await w.get(lease.upgrade(wait=0))
    status = await w.get(w.client.status("a", "rwlock"))
    assert (lease.mode, lease.token) == ("write", status.last_token)
    w.clock.advance(60)
    assert await units(w) == [MANY], "what was to be taken back is void"
    lease.ensure()
    await w.get(lease.release())


@in_both_worlds
async def test_a_downgrade_during_an_outage_is_made_later(w: World) -> None:
    store, client = site(w)
    lease = await w.get(client.rwlock("a").write().acquire())
    store.before = failing(resizes)
    await w.get(lease.downgrade())
    assert lease.mode == "read", "nobody writes any more, whatever the store knows"
    assert await units(w) == [MANY]
    heal(store)
    w.clock.advance(2)
    assert await units(w) == [1]
    await w.get(lease.release())


@pytest.mark.parametrize(("wait", "back_after", "ends"), [(5, 1, None), (3, 99, 3), (None, 99, 10)])
async def test_an_upgrade_outlives_an_outage_shorter_than_its_wait(
    clock: ManualClock, wait: float | None, back_after: float, ends: float | None
) -> None:
    store = TappedStore(clock=clock)
    client: Any = Client(StoreSession(store, clock=clock))
    lease = await client.rwlock("a").read().acquire()
    store.before = failing(lambda _: True)
    began = clock.now()
    upgrade = asyncio.create_task(lease.upgrade(wait=wait))
    while not upgrade.done():
        clock.advance(0.05)
        await asyncio.sleep(0)
        if clock.now() - began > back_after:
            heal(store)
    if ends is None:
        await upgrade
        assert lease.mode == "write"
    else:
        with pytest.raises(BackendUnavailable):
            await upgrade
        assert ends <= clock.now() - began < ends + 0.5
        assert lease.mode == "read"
    heal(store)
    await lease.release()
    await client.close()


def test_an_interrupt_leaves_nothing() -> None:
    w = World("sync")
    store, client = site(w)
    lease = client.rwlock("a").read().acquire()

    def interrupt(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Resize) for command in commands):
            heal(store)
            raise KeyboardInterrupt

    for hook in ("before", "after"):
        setattr(store, hook, interrupt)
        with pytest.raises(KeyboardInterrupt):
            lease.upgrade(wait=0)
        assert lease.mode == "read"
        w.clock.advance(1)
        assert [holder.units for holder in client.rwlock("a").status().holders] == [1]
    lease.upgrade()
    for hook in ("before", "after"):
        setattr(store, hook, interrupt)
        with pytest.raises(KeyboardInterrupt):
            lease.downgrade()
        assert lease.mode == "read"
        w.clock.advance(1)
        assert [holder.units for holder in client.rwlock("a").status().holders] == [1]
        lease.upgrade()
    assert lease.release()


@pytest.mark.parametrize("ends", [True, False])
async def test_an_upgrade_whose_place_has_ended_takes_another(
    clock: ManualClock, ends: bool
) -> None:
    """As when the process stood still while it asked for it, and it went with its patience.

    A late copy of what asked for a place finds it buried.
    """
    store = TappedStore(clock=clock)
    client: Any = Client(StoreSession(store, clock=clock))
    connection = store.inner.blocking_connection()
    late: list[Command] = []

    def end_the_first(commands: Sequence[Command]) -> None:
        for each in commands:
            if isinstance(each, Acquire) and each.note.startswith("waits to upgrade") and not late:
                late.append(each)
                if ends:
                    connection.apply([Release(each.key, each.id, tombstone=60)], 10)
                raise BackendUnavailable("planted")

    lock = client.rwlock("a")
    reader = await asyncio.create_task(lock.read().acquire())
    async with lock.read() as lease:
        store.before = end_the_first
        upgrade = asyncio.create_task(lease.upgrade())
        while not (await lock.status()).waiting and not upgrade.done():
            clock.advance(0.05)
            await asyncio.sleep(0)
        await reader.release()
        while not upgrade.done():
            clock.advance(0.05)
            await asyncio.sleep(0)
        await upgrade
        assert lease.mode == "write"
        connection.apply(late, 10)
        assert (await lock.status()).waiting == 0
    await client.close()


async def test_a_claim_whose_answer_comes_after_the_upgrade_is_no_loss(
    client: Client, clock: ManualClock
) -> None:
    async with client.rwlock("a").read() as lease:
        claimed = TimedReply(Granted(lease.token, (), 30.0), clock.now())
        clock.advance(1)
        await lease.upgrade()
        lease._renewed(claimed)
        lease.ensure()
        assert lease.mode == "write"


async def test_an_upgrade_ends_with_its_lease(client: Client, clock: ManualClock) -> None:
    lock = client.rwlock("a", ttl="3s", auto_renew=False)
    reader = await asyncio.create_task(client.rwlock("a").read().acquire())
    lease = await lock.read().acquire()
    began, upgrade = clock.now(), asyncio.create_task(lease.upgrade())
    while not upgrade.done():
        clock.advance(0.1)
        await asyncio.sleep(0)
    with pytest.raises(LeaseLost):
        await upgrade
    assert clock.now() - began < 3, "it notices at the deadline"
    assert client.session.keeper.flush(5)
    assert (await lock.status()).waiting == 0
    await reader.release()


async def test_one_try_passes_any_number_of_dead_readers(
    client: Client, clock: ManualClock
) -> None:
    """The store clears away only so many at a time."""
    runtime = client.session.loop_runtime()
    for number in range(500):
        await runtime.call(Acquire(b"rwlock:x", f"id{number}", "o", 5.0, capacity=MANY))
    clock.advance(60)
    lease = await client.rwlock("x").write().acquire(wait=0)
    await lease.release()


async def test_an_earlier_try_of_ones_own_is_no_other_reader() -> None:
    """A cancelled upgrade leaves the queue in the background, and the next one may find it there."""
    store = TappedStore()
    async with (
        Client(StoreSession(store)) as client,
        Client(StoreSession(store)) as another,
        asyncio.timeout(60),
    ):
        lease = await client.rwlock("a").read().acquire()
        other = await another.rwlock("a").read().acquire()
        for _ in range(5):
            upgrade = asyncio.create_task(lease.upgrade())
            while not (await client.rwlock("a").status()).waiting:
                await asyncio.sleep(0)
            upgrade.cancel()
            await asyncio.wait((upgrade,))
            with pytest.raises(AcquireTimeout, match="gave up upgrading after"):
                await lease.upgrade(wait=0.1)
            assert not (await client.rwlock("a").status()).waiting
        await other.release()
        await lease.upgrade()


async def test_an_upgrader_that_died_is_in_nobodys_way_for_longer_than_its_lease() -> None:
    store = TappedStore()
    async with Client(StoreSession(store)) as client, Client(StoreSession(store)) as another:
        lease = await client.rwlock("a", ttl=2).read().acquire()
        other = await another.rwlock("a", ttl=2).read().acquire()
        with pytest.raises(AcquireTimeout):
            await lease.upgrade(wait=0.01)
        await other.release()
        await lease.upgrade()
    queued = [c for batch in store.batches for c in batch if isinstance(c, Acquire) and c.queue]
    assert {command.waiter_ttl for command in queued if command.units > 1} == {2.0}


# -- in any order -------------------------------------------------------------------------------------


people = st.integers(0, 3)


class ReadersAndWriters(RuleBasedStateMachine):
    """Four people, each with a client of its own, and a model of who is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        store = MemoryStore(f"memory://{uuid4()}", clock=self.clock)
        self.clients: list[Any] = [
            dibs.sync.Client(StoreSession(store, clock=self.clock)) for _ in range(4)
        ]
        self.locks = [client.rwlock("a", ttl="10s") for client in self.clients]
        self.leases: dict[int, Any] = {}
        self.readers: set[int] = set()
        self.writer: int | None = None
        self.last_token = 0

    def granted(self, token: int) -> None:
        assert token > self.last_token, "every grant has a token above all before it"
        self.last_token = token

    @rule(who=people)
    def read(self, who: int) -> None:
        free = who not in self.leases and self.writer is None
        lease = self.locks[who].read().try_acquire()
        assert (lease is not None) is free
        if lease is not None:
            self.granted(lease.token)
            self.leases[who] = lease
            self.readers.add(who)

    @rule(who=people)
    def write(self, who: int) -> None:
        free = not self.readers and self.writer is None
        lease = self.locks[who].write().try_acquire()
        assert (lease is not None) is free
        if lease is not None:
            self.granted(lease.token)
            self.leases[who] = lease
            self.writer = who

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def upgrade(self, data: Any) -> None:
        who = data.draw(st.sampled_from(sorted(self.leases)))
        lease = self.leases[who]
        if self.writer == who:
            lease.upgrade()
            return
        if self.readers == {who}:
            lease.upgrade(wait=0)
            self.granted(lease.token)
            self.readers, self.writer = set(), who
        else:
            with pytest.raises(AcquireTimeout) as refusal:
                lease.upgrade(wait=0)
            others = {self.leases[other].token for other in self.readers - {who}}
            assert {holder.token for holder in refusal.value.holders} == others

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def downgrade(self, data: Any) -> None:
        who = data.draw(st.sampled_from(sorted(self.leases)))
        token = self.leases[who].token
        self.leases[who].downgrade()
        assert self.leases[who].token == token
        if self.writer == who:
            self.readers, self.writer = {who}, None

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        who = data.draw(st.sampled_from(sorted(self.leases)))
        assert self.leases.pop(who).release() is True
        self.readers.discard(who)
        if self.writer == who:
            self.writer = None

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def hand_on(self, data: Any) -> None:
        """Detached and attached by a client, it is what it was."""
        who = data.draw(st.sampled_from(sorted(self.leases)))
        self.leases[who] = self.clients[who].attach(self.leases[who].detach())

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def all_agree(self) -> None:
        modes = {who: lease.mode for who, lease in self.leases.items()}
        expected = dict.fromkeys(self.readers, "read")
        if self.writer is not None:
            expected[self.writer] = "write"
        assert modes == expected
        assert not any(lease.lost for lease in self.leases.values())
        status = self.locks[0].status()
        assert {holder.token: holder.units for holder in status.holders} == {
            lease.token: MANY if lease.mode == "write" else 1 for lease in self.leases.values()
        }
        assert self.locks[0].locked() is bool(self.leases)
        assert self.locks[0].read().locked() is (self.writer is not None)

    def teardown(self) -> None:
        for lease in self.leases.values():
            lease.release()
        for client in self.clients:
            client.close()


TestReadersAndWriters = ReadersAndWriters.TestCase

TestReadersAndWriters.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
