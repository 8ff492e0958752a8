"""What a simulated hand does with each primitive, and how often."""

from collections.abc import Awaitable, Callable
from typing import Any

from dibs.core.names import fingerprint
from dibs.errors import Deadlock, DibsError, NotHeld
from dibs.model import MANY
from tests.torture.hand import PATIENCES, Hand, in_block
from tests.torture.kinds import (
    SimAllOf,
    SimCampaign,
    SimElection,
    SimLock,
    SimRWLock,
    SimSemaphore,
    SimTaskLock,
)

type Action = Callable[[Hand], Awaitable[None]]

ACTIONS: dict[str, tuple[Action, float]] = {}
"""By name, and how often each is done."""


def action(weight: float) -> Callable[[Action], Action]:
    def register(do: Action) -> Action:
        ACTIONS[do.__name__] = do, weight
        return do

    return register


# ---- locks: alone, and several at a time ----------------------------------------------------------

TTLS = (0.6, 2.0, 10.0)
LOCKS = ("a", "b", "c")
DELAY = 1.5
"""Of the lock "slow"."""


def one(hand: Hand, name: str) -> Any:
    return hand.life.shared(SimLock, name, ttl=hand.draw.choice(TTLS), env_load=False)


@action(5)
async def lock(hand: Hand) -> None:
    await hand.hold(await hand.acquire(one(hand, hand.draw.choice(LOCKS))))


@action(1)
async def nested(hand: Hand) -> None:
    """Two, always in the same order."""
    first, second = sorted(hand.draw.sample(LOCKS, 2))

    async def inside(lease: Any) -> None:
        await hand.hold(await hand.acquire(one(hand, second)))
        if await hand.check(lease):
            hand.write(lease)

    await hand.hold(await hand.acquire(one(hand, first)), inside)


@action(0.5)
async def crossed(hand: Hand) -> None:
    """Two, in any order: who would wait for each other for ever are told so."""
    options = {"ttl": hand.draw.choice(TTLS), "env_load": False}
    first, second = (
        hand.life.shared(SimLock, name, **options) for name in hand.draw.sample(("x", "y"), 2)
    )

    async def inside(lease: Any) -> None:
        hand.tell("crossing", lease)
        try:
            await hand.hold(await hand.acquire(second, wait=None))
        except Deadlock:
            hand.tell("crossed", lease)

    await hand.hold(await hand.acquire(first), inside)


@action(1)
async def reentrant(hand: Hand) -> None:
    """One, twice over; given up in any order, and held until the last."""
    options = {"ttl": hand.draw.choice(TTLS), "reentrant": True, "env_load": False}
    lock = hand.life.shared(SimLock, "again", **options)
    outer = await hand.acquire(lock)

    async def inside(lease: Any) -> None:
        invoked = hand.engine.now
        inner = await lock._acquire()
        if inner is not lease:  # the first was lost meanwhile
            hand.granted(inner, invoked)
            await hand.hold(inner)
            return
        try:
            await hand.use(inner)
        finally:
            await inner._release()
        await hand.use(lease)

    await hand.hold(outer, inside)


@action(1)
async def delayed(hand: Hand) -> None:
    """One that stays closed for a while when its holder was not heard of again."""
    options = {"ttl": hand.draw.choice(TTLS[:2]), "lock_delay": DELAY, "env_load": False}
    await hand.hold(await hand.acquire(hand.life.shared(SimLock, "slow", **options)))


# ---- semaphores: several units at a time, and a capacity that callers do not agree about ----------


@action(4)
async def semaphore(hand: Hand) -> None:
    await take(hand, "pool", 3, hand.draw.randint(1, 2), most=3)


@action(3)
async def elastic(hand: Hand) -> None:
    """One whose capacity is another one each time. Whoever waits may be granted under somebody else's."""
    capacity = hand.draw.randint(2, 4)
    try:
        await take(hand, "elastic", capacity, hand.draw.randint(1, capacity), most=4)
    except DibsError as error:
        if type(error) is not DibsError or "cannot acquire" not in str(error):
            raise


async def take(hand: Hand, name: str, capacity: int, units: int, most: int) -> None:
    ttl = hand.draw.choice(TTLS)
    primitive = hand.life.shared(SimSemaphore, name, capacity, ttl=ttl, env_load=False)
    await hand.hold(await hand.acquire(primitive, units, most=most))


# ---- readers-writer locks: read, write, and turn one into the other -------------------------------


@action(6)
async def rwlock(hand: Hand) -> None:
    """Read or write; sometimes go on with the other."""
    name, ttl = hand.draw.choice(("table", "index")), hand.draw.choice(TTLS)
    both = hand.life.shared(SimRWLock, name, ttl=ttl, env_load=False)
    side = both.write() if hand.draw.random() < 0.3 else both.read()

    async def body(lease: Any) -> None:
        await read_or_write(hand, lease)
        for _ in range(hand.draw.choice((0, 0, 1, 2))):
            turn = downgrade if lease.mode == "write" else upgrade
            await turn(hand, lease)
            await read_or_write(hand, lease)

    await hand.hold(await hand.acquire(side), body)


async def read_or_write(hand: Hand, lease: Any) -> None:
    """Readers don't write."""
    length = hand.draw.choices((0.0, 0.02, 0.3 * lease.ttl, 1.5 * lease.ttl), (45, 45, 7, 3))[0]
    for _ in range(2):
        await hand.sleep(0.0 if hand.world.closing else length / 2)
        if not await hand.check(lease):
            return
        if lease.mode == "write":
            hand.write(lease)


async def downgrade(hand: Hand, lease: Any) -> None:
    """From here on nobody believes that it writes, and once it is confirmed others read."""
    hand.tell("resized", lease, invoked=hand.engine.now, units=1, capacity=MANY)
    await lease._downgrade()
    lease.confirmed = lease._settling is None
    # past its deadline a late copy of our Acquire may hold, for nobody
    if lease.confirmed and lease._stands:
        for holder in hand.world.network.peek(lease.key).holders:
            if holder.lease == fingerprint(lease._id):
                hand.tell("seen", lease, units=holder.units)


async def upgrade(hand: Hand, lease: Any) -> None:
    """Wait for the other readers, unless one of them waits for us."""
    invoked, key, token = hand.engine.now, lease.key.decode(), lease.token
    hand.tell("upgrading", lease)
    try:
        await lease._upgrade(hand.draw.choice((0.0, 5.0, None, None, None)))
    except Deadlock:
        hand.record("deadlock", key, invoked=invoked, lease=lease.called)
        raise
    if lease.token == token and not lease.confirmed:  # the store never heard of the last downgrade,
        await lease._downgrade()  # so that this is no new grant to it
    else:
        hand.tell("resized", lease, invoked=invoked, units=MANY, capacity=MANY)


# ---- task locks: short tasks, tasks that fail, and such as take longer than they may --------------


TASKS = {"often": (0.3, 1.0), "seldom": (1.0, 12.0), "soon": (0.1, 0.6)}
"""Names, `min_hold` and `max_hold`."""


class Oops(Exception):
    """A task has failed."""


@action(6)
async def tasklock(hand: Hand) -> None:
    """One try; whatever becomes of the task, nobody starts it too soon after that."""
    name, cancel = hand.draw.choice(tuple(TASKS)), hand.draw.random() < 0.5
    primitive = hand.life.shared(SimTaskLock, name, *TASKS[name], cancel=cancel)

    async def task(lease: Any) -> None:
        shortest, longest = TASKS[name]
        lengths = 0.0, shortest / 2, shortest * 2, longest * 1.2
        length = hand.draw.choices(lengths, (6, 6, 2, 1))[0]
        await hand.sleep(0.0 if hand.world.closing else length)
        if await hand.check(lease):
            hand.write(lease)
        if hand.draw.random() < 0.2:
            raise Oops

    try:
        await hand.hold(await hand.acquire(primitive, wait=0.0), task)
    except Oops:
        pass


# ---- several at once, all or nothing: locks, a semaphore and a readers-writer lock, in any order --


def members(hand: Hand) -> list[Any]:
    """All that may be wanted; the ttl is the same for all."""
    options: dict[str, Any] = {"ttl": hand.draw.choice(TTLS), "env_load": False}
    shared = hand.life.shared
    shelf = shared(SimRWLock, "shelf", **options)
    return [
        shared(SimLock, "p", **options),
        shared(SimLock, "q", **options),
        (shared(SimSemaphore, "bench", 3, **options), hand.draw.randint(1, 2)),
        shelf.write() if hand.draw.random() < 0.3 else shelf.read(),
    ]


@action(6)
async def allof(hand: Hand) -> None:
    """Some of them at once; sometimes one alone."""
    wanted = hand.draw.sample(members(hand), hand.draw.choice((1, 2, 2, 3, 4)))
    if len(wanted) == 1:
        primitive, units = wanted[0] if isinstance(wanted[0], tuple) else (wanted[0], 1)
        await hand.hold(await hand.acquire(primitive, units))
        return
    leases = await acquire_all(hand, wanted)
    as_block = hand.draw.random() < 0.5
    if as_block:
        await leases._begin()

    async def leave(error: BaseException | None) -> None:
        for lease in leases:
            hand.tell("releasing", lease)
        await (leases._leave(error) if as_block else leases._release())

    await in_block(use_all(hand, leases), leave)


async def acquire_all(hand: Hand, wanted: list[Any]) -> Any:
    """All of them, or nothing is left of it."""
    wait = hand.draw.choice(PATIENCES)
    primitives = [one[0] if isinstance(one, tuple) else one for one in wanted]
    with hand.attempt(*primitives) as (note, invoked):
        leases = await SimAllOf(*wanted)._acquire(wait, None, note)
    for lease, primitive in zip(leases, primitives, strict=True):
        units, capacity = lease._options.units, primitive._capacity
        hand.granted(lease, invoked, MANY if units == MANY else units, capacity)
    return leases


async def use_all(hand: Hand, leases: Any) -> None:
    """Whoever is told that it holds all writes to each."""
    ttl = leases[0].ttl
    length = hand.draw.choices((0.0, 0.02, 0.3 * ttl, 1.5 * ttl), (45, 45, 7, 3))[0]
    for _ in range(2):
        await hand.sleep(0.0 if hand.world.closing else length / 2)
        try:
            leases.ensure()
        except DibsError:
            return
        for lease in leases:
            hand.believed(lease)
        if await hand.check(leases[0]):
            for lease in leases:
                if lease._options.units == MANY or not lease.key.startswith(b"rwlock"):
                    hand.write(lease)


# ---- leader elections: with a block, with a campaign in the background, and for a function --------


ELECTIONS = {
    "main": {"ttl": 1.5, "renew_deadline": 0.9, "retry": 0.2},
    "spare": {"ttl": 10.0, "renew_deadline": 6.0, "retry": 1.5},
    "near": {"ttl": 2.0, "renew_deadline": 1.9, "retry": 0.4},
}
"""Names and deadlines; one of them is nearer to the store's than its margin."""


class Candidate:
    """An election of one hand, and what is told of its terms."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.name = hand.draw.choice(tuple(ELECTIONS))
        hand.tries += 1
        self.note = f"{hand.process.number}.{hand.number}.{hand.tries}"
        self.election: Any = SimElection(
            self.name,
            note=self.note,
            on_started=self.started,
            on_stopped=self.stopped,
            env_load=False,
            **ELECTIONS[self.name],  # type: ignore[arg-type]
        )
        self.election.runtime = hand.runtime
        self.election.hand = hand
        hand.keys.append(self.election.key.decode())

    def started(self, term: Any) -> None:
        self.hand.tell("started", term)

    async def stopped(self, term: Any) -> None:
        """It takes a moment, and nobody else leads before it is over."""
        self.hand.tell("stopped", term)
        try:
            await self.hand.sleep(self.hand.draw.choice((0.0, 0.02)))
        finally:
            self.hand.tell("over", term)

    def look(self) -> None:
        hand, election = self.hand, self.election
        if hand.process.alive:
            hand.world.look_for(hand.process, election.key, self.note, election.ttl)

    async def govern(self, term: Any, leads: Callable[[], bool]) -> None:
        """Lead for a while; whatever ends it, the last step takes a moment."""
        hand, draw = self.hand, self.hand.draw
        length = draw.choices((0.02, 0.3, 2 * self.election.ttl), (80, 18, 2))[0]
        try:
            for _ in range(3):
                await hand.sleep(0.0 if hand.world.closing else length / 3)
                if not leads():
                    return
                hand.believed(term)
                if await hand.check(term):
                    hand.write(term)
                if draw.random() < 0.1 and self.election.resign():
                    hand.tell("resigned", term)
                    await hand.sleep(0.01)
        finally:
            try:
                await hand.sleep(draw.choice((0.0, 0.05)))
            finally:
                hand.tell("ended", term)


@action(2)
async def leader(hand: Hand) -> None:
    """As `async with election as term` does."""
    candidate = Candidate(hand)
    election = candidate.election
    try:
        term = await election._enter_block()
        leading = candidate.govern(term, election.is_leader)
        await in_block(leading, lambda error: election._take_entered()._leave(error))
    finally:
        candidate.look()


@action(2)
async def campaign(hand: Hand) -> None:
    """Stand in the background, lead where that is guarded, and step down."""
    candidate = Candidate(hand)
    standing = SimCampaign(candidate.election)
    await standing._start()
    try:
        for _ in range(hand.draw.choice((1, 1, 2))):
            if await standing._wait(hand.draw.choice((0.0, 1.0, 30.0))):
                await guarded(candidate, standing)
    finally:
        await standing._finish()
        candidate.look()


async def guarded(candidate: Candidate, standing: SimCampaign) -> None:
    """As `async with campaign.guard()` does."""
    guard = standing.guard()
    try:
        term = guard._begin()
    except NotHeld:
        return  # it has ended in this very moment

    async def leave(error: BaseException | None) -> None:
        guard._end(error)

    await in_block(candidate.govern(term, standing.is_leader), leave)


@action(1)
async def run(hand: Hand) -> None:
    """Lead with a function until it has returned."""
    candidate = Candidate(hand)

    async def function(term: Any) -> None:
        await candidate.govern(term, candidate.election.is_leader)

    try:
        await candidate.election._run(function, None)
    finally:
        candidate.look()
