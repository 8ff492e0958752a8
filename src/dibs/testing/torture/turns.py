"""Turns of a worker's tasks and threads: acquire each primitive, check, write, and record events.

The text is the same for tasks and threads; `TortureWorld` is the difference.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import dibs
import dibs.sync
from dibs.errors import AcquireTimeout, BackendUnavailable, Deadlock, LeaseLost, NotHeld
from dibs.model import MANY
from dibs.testing.history import HistoryEvent
from dibs.testing.recorder import RecordedLease, Recorder
from dibs.testing.torture.orders import Orders
from dibs.testing.torture.plan import CAPACITY, WorldName

BRIEF = (0.0, 0.002), (75, 24)
LONG = (0.3, 1.2), (0.8, 0.2)
"""Lengths of steps and their weights: in seconds, and in ttls."""


class Stopped(KeyboardInterrupt):
    """The worker is to stop, and this thread waited in a queue."""


class TortureWorld:
    """How tasks, or threads, use the public API. Calls of threads have returned already."""

    def __init__(self, name: WorldName) -> None:
        self._awaits = name == "asyncio"
        self.library: ModuleType = dibs if self._awaits else dibs.sync
        self.interrupted: type[BaseException] = asyncio.CancelledError if self._awaits else Stopped
        """Raised in a hand that is called away from a queue."""

    async def get(self, value: Any) -> Any:
        """Result of a call."""
        return await value if self._awaits else value

    async def sleep(self, seconds: float) -> None:
        """Let the hand sleep."""
        if self._awaits:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop here

    @asynccontextmanager
    async def block(self, manager: Any) -> AsyncGenerator[Any]:
        """Enter `manager`, whose side is that of this world."""
        if self._awaits:
            async with manager as entered:
                yield entered
        else:
            with manager as entered:
                yield entered


class HandHost(Protocol):
    """The part of a worker that its hands use."""

    orders: Orders
    world: TortureWorld
    recorder: Recorder
    stopping: bool

    def write(self, lease: RecordedLease) -> None: ...
    def holds(self, primitive: str, change: int, *, done: bool = False) -> None: ...
    def cut_off(self) -> None: ...


class Hand:
    """A task or thread of a worker. It takes one turn at a time."""

    def __init__(self, worker: HandHost, number: int) -> None:
        self.draw = random.Random(worker.orders.seed * 1_000 + number)  # noqa: S311
        self.interruptible = False
        """It waits in a queue, and can be called away."""
        self.primitive = ""
        """Primitive of its current turn."""
        self.ttl = worker.orders.ttl
        self.patience = worker.orders.wait
        self.world = worker.world
        self._worker = worker
        self._recorder = worker.recorder
        self._held = 0
        self.now = worker.recorder.now

    async def get(self, value: Any) -> Any:
        """Result of a call of the public API, in this hand's world."""
        return await self.world.get(value)

    # -- asking -------------------------------------------------------------------------------------

    def asking(self, *keys: bytes) -> float:
        """A call that waits begins; from here on it may be interrupted."""
        invoked = self._recorder.asked(*keys)
        self.interruptible = True
        if self._worker.stopping:
            self.interrupt()
        return invoked

    def interrupt(self) -> None:
        """Raise `Stopped`, if that is how to leave."""
        if self.interruptible:
            self.interruptible = False
            raise Stopped

    def granted(self, lease: Any, invoked: float, **what: Any) -> None:
        self.interruptible = False
        self._recorder.granted(lease, invoked, **what)
        self._held += 1
        self._worker.holds(self.primitive, +1)

    def gave_up(self, invoked: float, *keys: bytes) -> None:
        self.interruptible = False
        for key in keys:
            self._recorder.gave_up(key, invoked)

    def refused(self, invoked: float, key: bytes) -> None:
        self._recorder.refused(key, invoked)

    def cut_off(self) -> None:
        """The store was away: nobody can be served, and nothing is said about waiting."""
        self.interruptible = False
        self._recorder.record(HistoryEvent(self.now(), "disturbed"))
        self._worker.cut_off()

    # -- holding ------------------------------------------------------------------------------------

    async def work(
        self, *leases: Any, writes: bool = True, lengths: Sequence[Any] = (BRIEF, LONG)
    ) -> None:
        """The body: check, work for a while, write. Raises `LeaseLost`."""
        (brief, how_brief), (long, how_long) = lengths
        choices = [*brief, *(ttls * self.ttl for ttls in long)]
        for _ in range(self.draw.randint(1, 3)):
            for lease in leases:
                self.check(lease)
            await self.world.sleep(self.draw.choices(choices, (*how_brief, *how_long))[0])
            for lease in leases if writes else ():
                self._worker.write(lease)

    def check(self, lease: Any) -> None:
        """Be told that it is held. Raises `LeaseLost`."""
        at = self.now()
        lease.ensure()
        self._recorder.renewed(lease)
        self._recorder.believed(lease, at)

    def resized(self, lease: Any, invoked: float, *, units: int, capacity: int) -> None:
        self._recorder.resized(lease, invoked, units=units, capacity=capacity)

    def shrinking(self, lease: Any, *, units: int, capacity: int) -> None:
        self._recorder.renewed(lease)
        self._recorder.shrinking(lease, units=units, capacity=capacity)

    def releasing(self, lease: Any) -> None:
        self._recorder.renewed(lease)  # whatever the keeper did during the last step
        self._recorder.releasing(lease)
        self._held -= 1
        self._worker.holds(self.primitive, -1, done=not self._held)


class Wish(NamedTuple):
    """The wish of a hand for a turn."""

    acquire: Callable[[], Any]
    units: Mapping[bytes, int]
    """So many of each key."""


class Turns:
    """A resource of a client, and the way in which a hand uses it."""

    capacity = 1

    def __init__(self, client: Any, name: str, orders: Orders) -> None:
        self.client = client
        self.name = orders.prefix + name
        self.how: dict[str, Any] = {"ttl": orders.ttl, "wait": orders.wait, "env_load": False}
        self.resource = self.described(name)
        self.key: bytes = self.resource.key

    def described(self, name: str) -> Any:
        """The primitive, as a user would describe it."""
        raise NotImplementedError

    async def take(self, hand: Hand) -> None:
        """Take a turn."""
        acquire, units = self.wanted(hand)
        invoked = hand.asking(*units)
        try:
            held = await hand.get(acquire())
            hand.interruptible = False
        except (AcquireTimeout, hand.world.interrupted):
            return hand.gave_up(invoked, *units)
        except BackendUnavailable:
            return hand.cut_off()
        leases = self.leases(held)
        for lease in leases:
            hand.granted(lease, invoked, units=units[lease.key], capacity=self.capacity)
        try:
            await self.use(hand, *leases)
        except LeaseLost:
            pass
        for lease in leases:
            hand.releasing(lease)
        try:
            await hand.get(held.release())
        except BackendUnavailable:
            hand.cut_off()

    def wanted(self, hand: Hand) -> Wish:
        """Draw a wish."""
        return Wish(self.resource.acquire, {self.key: 1})

    def leases(self, held: Any) -> Sequence[Any]:
        """The leases in what was acquired."""
        return (held,)

    async def use(self, hand: Hand, *leases: Any) -> None:
        """Use what is held. Raises `LeaseLost`."""
        await hand.work(*leases)


PARTS = "abc"


class AllOfTurns(Turns):
    """Acquire two or three of three, check and write to all, release."""

    def described(self, name: str) -> Any:
        self._locks = [self.client.lock(f"{self.name}-{part}", **self.how) for part in PARTS]
        return self._locks[0]

    def wanted(self, hand: Hand) -> Wish:
        chosen = hand.draw.sample(self._locks, hand.draw.choice((2, 3)))
        together = hand.world.library.AllOf(*chosen)
        return Wish(together.acquire, {lock.key: 1 for lock in chosen})

    def leases(self, held: Any) -> Sequence[Any]:
        return tuple(held)


class LockTurns(Turns):
    """Acquire, check and write, release."""

    def described(self, name: str) -> Any:
        return self.client.lock(self.name, **self.how)


class SemaphoreTurns(Turns):
    """Acquire units, check and write for each slot, release."""

    capacity = CAPACITY

    def described(self, name: str) -> Any:
        return self.client.semaphore(self.name, CAPACITY, **self.how)

    def wanted(self, hand: Hand) -> Wish:
        units = hand.draw.choices((1, 2, 3), (6, 3, 1))[0]
        return Wish(partial(self.resource.acquire, units=units), {self.key: units})


UPGRADE_PATIENCE = 0, 0.05, None
"""How long an upgrade waits for the other readers."""


class RWLockTurns(Turns):
    """Acquire for one of both, check, maybe change, check again, release; writers write."""

    capacity = MANY

    def described(self, name: str) -> Any:
        return self.client.rwlock(self.name, **self.how)

    def wanted(self, hand: Hand) -> Wish:
        if hand.draw.random() < 0.6:
            return Wish(self.resource.read().acquire, {self.key: 1})
        return Wish(self.resource.write().acquire, {self.key: MANY})

    async def use(self, hand: Hand, *leases: Any) -> None:
        (lease,) = leases
        await hand.work(lease, writes=lease.mode == "write")
        if hand.draw.random() < 0.5:
            await (self._downgrade if lease.mode == "write" else self._upgrade)(hand, lease)
            await hand.work(lease, writes=lease.mode == "write")

    async def _downgrade(self, hand: Hand, lease: Any) -> None:
        hand.shrinking(lease, units=1, capacity=MANY)  # first: it may be killed before the answer
        await hand.get(lease.downgrade())

    async def _upgrade(self, hand: Hand, lease: Any) -> None:
        invoked = hand.now()
        try:
            await hand.get(lease.upgrade(wait=hand.draw.choice(UPGRADE_PATIENCE)))
        except (AcquireTimeout, Deadlock):
            return  # it reads on
        except BackendUnavailable:
            hand.cut_off()
            return
        hand.resized(lease, invoked, units=MANY, capacity=MANY)


MIN_HOLD, MAX_HOLD = 0.3, 1.5
"""In ttls."""
TASKS = (0.002, 0.05), (40, 55)
"""Steps of a task take longer than those of other leases, and there are less of them."""
FAILURES = 0.3


class TurnFailed(Exception):
    """A task failed, as tasks do."""


class TaskLockTurns(Turns):
    """Start if it may, check and write, end well or not."""

    def described(self, name: str) -> Any:
        ttl = self.how["ttl"]
        self.min_hold = MIN_HOLD * ttl
        return self.client.task_lock(self.name, self.min_hold, MAX_HOLD * ttl)

    async def take(self, hand: Hand) -> None:
        invoked = hand.now()
        try:
            lease = await hand.get(self.resource.try_acquire())
        except BackendUnavailable:
            return hand.cut_off()
        if lease is None:
            hand.refused(invoked, self.key)
            return await hand.world.sleep(hand.draw.random() * self.min_hold / 4)
        hand.granted(lease, invoked, min_hold=self.min_hold)
        try:
            async with hand.world.block(lease):
                await self._run(hand, lease)
        except (LeaseLost, TurnFailed):
            pass

    async def _run(self, hand: Hand, lease: Any) -> None:
        try:
            await hand.work(lease, lengths=(TASKS, LONG))
            if hand.draw.random() < FAILURES:
                raise TurnFailed
        finally:
            hand.releasing(lease)


RENEW_DEADLINE, RETRY = 0.7, 0.15
"""In ttls."""
TERMS = (0.002, 0.02), (40, 55)
"""Steps of a term take longer than those of other leases: it is renewed more often, too."""
RESIGNS = 0.3


class Candidacy:
    """Records the terms of a candidate, as its callbacks report them."""

    def __init__(self, hand: Hand, key: bytes) -> None:
        self.invoked = hand.asking(key)
        self.led = False
        self._hand = hand

    def started(self, term: Any) -> None:
        self.led = True
        self._hand.granted(term, self.invoked)

    def stopped(self, term: Any) -> None:
        self._hand.releasing(term)
        self.invoked = self._hand.now()


class LeaderTurns(Turns):
    """Lead in a block of its own, or by a campaign in the background."""

    def described(self, name: str) -> Any:
        return self._election()

    def _election(self, **callbacks: Any) -> Any:
        ttl = self.how["ttl"]
        timing = {"ttl": ttl, "renew_deadline": RENEW_DEADLINE * ttl, "retry": RETRY * ttl}
        return self.client.leader_election(self.name, env_load=False, **timing, **callbacks)

    async def take(self, hand: Hand) -> None:
        stands = Candidacy(hand, self.key)
        leader = self._election(on_started=stands.started, on_stopped=stands.stopped)
        try:
            if hand.draw.random() < 0.5:
                await self._in_a_block(hand, leader)
            else:
                await self._in_the_background(hand, leader)
        except BackendUnavailable:
            return hand.cut_off()
        except (LeaseLost, NotHeld, hand.world.interrupted):
            pass
        if not stands.led:
            hand.gave_up(stands.invoked, self.key)

    async def _in_a_block(self, hand: Hand, leader: Any) -> None:
        async with hand.world.block(leader) as term:
            await self._lead(hand, leader, term)

    async def _in_the_background(self, hand: Hand, leader: Any) -> None:
        async with hand.world.block(leader.campaign()) as campaign:
            leads = await hand.get(campaign.wait(hand.patience))
            hand.interruptible = False
            if leads:
                async with hand.world.block(campaign.guard()) as term:
                    await self._lead(hand, leader, term)

    async def _lead(self, hand: Hand, leader: Any, term: Any) -> None:
        await hand.work(term, lengths=(TERMS, LONG))
        if hand.draw.random() < RESIGNS:
            leader.resign()
        await hand.work(term, lengths=(TERMS, LONG))


TURNS: dict[str, type[Turns]] = {
    "lock": LockTurns,
    "semaphore": SemaphoreTurns,
    "rwlock": RWLockTurns,
    "tasklock": TaskLockTurns,
    "leader": LeaderTurns,
    "allof": AllOfTurns,
}
"""By primitive."""
