"""Several at once, all or nothing: locks, a semaphore and a readers-writer lock, in any order."""

from typing import Any

from dibs.errors import DibsError
from dibs.model import MANY
from tests.torture.deeds.locks import TTLS
from tests.torture.hand import PATIENCES, Hand
from tests.torture.kinds import SimAllOf, SimLock, SimRWLock, SimSemaphore


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


async def together(hand: Hand) -> None:
    """Some of them at once; sometimes one alone."""
    wanted = hand.draw.sample(members(hand), hand.draw.choice((1, 2, 2, 3, 4)))
    if len(wanted) == 1:
        primitive, units = wanted[0] if isinstance(wanted[0], tuple) else (wanted[0], 1)
        await hand.hold(await hand.acquire(primitive, units))
        return
    leases = await gather(hand, wanted)
    way = within if hand.draw.random() < 0.5 else without
    await way(hand, leases)


async def gather(hand: Hand, wanted: list[Any]) -> Any:
    """All of them, or nothing is left of it."""
    wait, invoked = hand.draw.choice(PATIENCES), hand.engine.now
    primitives = [one[0] if isinstance(one, tuple) else one for one in wanted]
    hand.keys += [primitive.key.decode() for primitive in primitives]
    hand.tries += 1
    note = f"{hand.process.number}.{hand.number}.{hand.tries}"
    try:
        leases = await SimAllOf(*wanted)._acquire(wait, None, note)
    except BaseException:
        if hand.process.alive:
            for primitive in primitives:
                hand.world.look_for(hand.process, primitive.key, note, primitive.config.ttl)
        raise
    for lease, primitive in zip(leases, primitives, strict=True):
        units, capacity = lease._options.units, primitive._capacity
        hand.granted(lease, invoked, MANY if units == MANY else units, capacity)
    return leases


async def within(hand: Hand, leases: Any) -> None:
    """As `async with AllOf(…) as leases` does."""
    await leases._begin()
    try:
        await use(hand, leases)
    except BaseException as error:
        releasing(hand, leases)
        await leases._leave(error)
        raise
    releasing(hand, leases)
    await leases._leave(None)


async def without(hand: Hand, leases: Any) -> None:
    """By hand."""
    try:
        await use(hand, leases)
    finally:
        releasing(hand, leases)
        await leases._release()


def releasing(hand: Hand, leases: Any) -> None:
    for lease in leases:
        hand.tell("releasing", lease)


async def use(hand: Hand, leases: Any) -> None:
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
