"""Turns on each primitive: acquire, check, write, record, release. The text serves tasks and threads."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from dibs.errors import AcquireTimeout, BackendUnavailable, Deadlock, LeaseLost, NotHeld
from dibs.model import MANY
from dibs.testing.torture.contender import LONG, Contender
from dibs.testing.torture.orders import Orders
from dibs.testing.torture.plan import CAPACITY


class Demand(NamedTuple):
    """The demand of a contender for a turn."""

    acquire: Callable[[], Any]
    units: Mapping[bytes, int]
    """So many of each key."""


class Turns:
    """A resource of a client, and the way in which a contender uses it."""

    capacity = 1

    def __init__(self, client: Any, name: str, orders: Orders) -> None:
        self.client: Any = client
        self.name: str = orders.prefix + name
        self.how: dict[str, Any] = {"ttl": orders.ttl, "wait": orders.wait, "env_load": False}
        self.resource: Any = self.described(name)
        self.key: bytes = self.resource.key

    def described(self, name: str) -> Any:
        """The primitive, as a user would describe it."""
        raise NotImplementedError

    async def take(self, contender: Contender) -> None:
        """Take a turn."""
        acquire, units = self.wanted(contender)
        invoked = contender.asking(*units)
        try:
            held = await contender.get(acquire())
            contender.interruptible = False
        except (AcquireTimeout, contender.side.interrupted):
            return contender.gave_up(invoked, *units)
        except BackendUnavailable:
            return contender.cut_off()
        leases = self.leases(held)
        for lease in leases:
            contender.granted(lease, invoked, units=units[lease.key], capacity=self.capacity)
        try:
            await self.use(contender, *leases)
        except LeaseLost:
            pass
        for lease in leases:
            contender.releasing(lease)
        try:
            await contender.get(held.release())
        except BackendUnavailable:
            contender.cut_off()

    def wanted(self, contender: Contender) -> Demand:
        """Draw a demand."""
        return Demand(self.resource.acquire, {self.key: 1})

    def leases(self, held: Any) -> Sequence[Any]:
        """The leases in what was acquired."""
        return (held,)

    async def use(self, contender: Contender, *leases: Any) -> None:
        """Use what is held. Raises `LeaseLost`."""
        await contender.work(*leases)


PARTS = "abc"


class AllOfTurns(Turns):
    """Acquire two or three of three, check and write to all, release."""

    def described(self, name: str) -> Any:
        self._locks = [self.client.lock(f"{self.name}-{part}", **self.how) for part in PARTS]
        return self._locks[0]

    def wanted(self, contender: Contender) -> Demand:
        chosen = contender.draw.sample(self._locks, contender.draw.choice((2, 3)))
        together = contender.side.library.AllOf(*chosen)
        return Demand(together.acquire, {lock.key: 1 for lock in chosen})

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

    def wanted(self, contender: Contender) -> Demand:
        units = contender.draw.choices((1, 2, 3), (6, 3, 1))[0]
        return Demand(partial(self.resource.acquire, units=units), {self.key: units})


UPGRADE_PATIENCE = 0, 0.05, None
"""How long an upgrade waits for the other readers."""


class RWLockTurns(Turns):
    """Acquire for one of both, check, maybe change, check again, release; writers write."""

    capacity = MANY

    def described(self, name: str) -> Any:
        return self.client.rwlock(self.name, **self.how)

    def wanted(self, contender: Contender) -> Demand:
        if contender.draw.random() < 0.6:
            return Demand(self.resource.read().acquire, {self.key: 1})
        return Demand(self.resource.write().acquire, {self.key: MANY})

    async def use(self, contender: Contender, *leases: Any) -> None:
        (lease,) = leases
        await contender.work(lease, writes=lease.mode == "write")
        if contender.draw.random() < 0.5:
            await (self._downgrade if lease.mode == "write" else self._upgrade)(contender, lease)
            await contender.work(lease, writes=lease.mode == "write")

    async def _downgrade(self, contender: Contender, lease: Any) -> None:
        contender.shrinking(
            lease, units=1, capacity=MANY
        )  # first: it may be killed before the answer
        await contender.get(lease.downgrade())

    async def _upgrade(self, contender: Contender, lease: Any) -> None:
        invoked = contender.now()
        try:
            await contender.get(lease.upgrade(wait=contender.draw.choice(UPGRADE_PATIENCE)))
        except (AcquireTimeout, Deadlock):
            return  # it reads on
        except BackendUnavailable:
            contender.cut_off()
            return
        contender.resized(lease, invoked, units=MANY, capacity=MANY)


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
        self.min_hold: float = MIN_HOLD * ttl
        return self.client.task_lock(self.name, self.min_hold, MAX_HOLD * ttl)

    async def take(self, contender: Contender) -> None:
        invoked = contender.now()
        try:
            lease = await contender.get(self.resource.try_acquire())
        except BackendUnavailable:
            return contender.cut_off()
        if lease is None:
            contender.refused(invoked, self.key)
            return await contender.side.sleep(contender.draw.random() * self.min_hold / 4)
        contender.granted(lease, invoked, min_hold=self.min_hold)
        try:
            async with contender.side.block(lease):
                await self._run(contender, lease)
        except (LeaseLost, TurnFailed):
            pass

    async def _run(self, contender: Contender, lease: Any) -> None:
        try:
            await contender.work(lease, lengths=(TASKS, LONG))
            if contender.draw.random() < FAILURES:
                raise TurnFailed
        finally:
            contender.releasing(lease)


RENEW_DEADLINE, RETRY = 0.7, 0.15
"""In ttls."""
TERMS = (0.002, 0.02), (40, 55)
"""Steps of a term take longer than those of other leases: it is renewed more often, too."""
RESIGNS = 0.3


class Candidacy:
    """Records the terms of a candidate, as its callbacks report them."""

    def __init__(self, contender: Contender, key: bytes) -> None:
        self.invoked: float = contender.asking(key)
        self.led: bool = False
        self._hand = contender

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

    async def take(self, contender: Contender) -> None:
        stands = Candidacy(contender, self.key)
        leader = self._election(on_started=stands.started, on_stopped=stands.stopped)
        try:
            if contender.draw.random() < 0.5:
                await self._in_a_block(contender, leader)
            else:
                await self._in_the_background(contender, leader)
        except BackendUnavailable:
            return contender.cut_off()
        except (LeaseLost, NotHeld, contender.side.interrupted):
            pass
        if not stands.led:
            contender.gave_up(stands.invoked, self.key)

    async def _in_a_block(self, contender: Contender, leader: Any) -> None:
        async with contender.side.block(leader) as term:
            await self._lead(contender, leader, term)

    async def _in_the_background(self, contender: Contender, leader: Any) -> None:
        async with contender.side.block(leader.campaign()) as campaign:
            leads = await contender.get(campaign.wait(contender.patience))
            contender.interruptible = False
            if leads:
                async with contender.side.block(campaign.guard()) as term:
                    await self._lead(contender, leader, term)

    async def _lead(self, contender: Contender, leader: Any, term: Any) -> None:
        await contender.work(term, lengths=(TERMS, LONG))
        if contender.draw.random() < RESIGNS:
            leader.resign()
        await contender.work(term, lengths=(TERMS, LONG))


TURNS: dict[str, type[Turns]] = {
    "lock": LockTurns,
    "semaphore": SemaphoreTurns,
    "rwlock": RWLockTurns,
    "tasklock": TaskLockTurns,
    "leader": LeaderTurns,
    "allof": AllOfTurns,
}
"""By primitive."""
