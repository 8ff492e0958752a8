"""A turn with most primitives: acquire, check and write, release."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dibs.errors import AcquireTimeout, BackendUnavailable, LeaseLost
from dibs.testing.torture.hands import Hand
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
