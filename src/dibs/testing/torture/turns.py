"""A turn with each primitive: acquire, check and write, release. Tasks and threads have the same text."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from dibs.errors import AcquireTimeout, BackendUnavailable, Deadlock, LeaseLost, NotHeld
from dibs.model import MANY
from dibs.testing.torture.hands import LONG, Hand
from dibs.testing.torture.orders import Orders


class Wish(NamedTuple):
    """What a hand wants in one turn."""

    acquire: Callable[[], Any]
    units: Mapping[bytes, int]
    """So many of each key."""


class Turns:
    """One resource of a client, and what a hand does with it."""

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
        """One turn."""
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
        """What is wanted this time."""
        return Wish(self.resource.acquire, {self.key: 1})

    def leases(self, held: Any) -> Sequence[Any]:
        """The leases in what was acquired."""
        return (held,)

    async def use(self, hand: Hand, *leases: Any) -> None:
        """What is done while it is held. Raises `LeaseLost`."""
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


CAPACITY = 3


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


class Failed(Exception):
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
        except (LeaseLost, Failed):
            pass

    async def _run(self, hand: Hand, lease: Any) -> None:
        try:
            await hand.work(lease, lengths=(TASKS, LONG))
            if hand.draw.random() < FAILURES:
                raise Failed
        finally:
            hand.releasing(lease)


RENEW_DEADLINE, RETRY = 0.7, 0.15
"""In ttls."""
TERMS = (0.002, 0.02), (40, 55)
"""Steps of a term take longer than those of other leases: it is renewed more often, too."""
RESIGNS = 0.3


class Candidacy:
    """What one candidate is told of its terms is what is recorded."""

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
