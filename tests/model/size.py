"""How large a small world is, and what may go wrong in it."""

from dataclasses import dataclass, field

from tests.model.protocol import Protocol
from tests.model.world import FOREVER, Client, FrozenBook, State


@dataclass(frozen=True)
class World:
    """The size of a small world. Per-client settings are tuples, one item for each client."""

    name: str
    ids: tuple[int, ...] = (1, 1)
    """How many ids each client may use."""
    units: tuple[int, ...] = (1, 1)
    queues: tuple[bool, ...] = (False, False)
    slips: tuple[int, ...] = (0, 0)
    """By how many ticks each clock is off, once in `every` of the store's ticks."""
    capacity: int = 1
    ttl: int = 3
    window: int = 3
    waiter_ttl: int = 4
    every: int = 1
    priorities: tuple[int, ...] = (0, 0, 0)
    renewals: tuple[int, ...] = (1, 0, 0)
    """So many renewals and resizes for each id."""
    resizes: bool = False
    speaks: str = "renew"
    """The verb with which a place gives its signs of life."""
    keep: int = 0
    tombstone: int = FOREVER
    """Ticks for which the store remembers an id that ended by itself; less than twice `LONG_AGO`."""
    loud: tuple[bool, ...] = (True, False, False)
    """A loud client's messages are delayed, lost and doubled at will; a calm one's calls are one step."""
    confirms: bool = False
    """A pushed grant is confirmed before it is believed."""
    stale: int = 1
    """So many requests that nobody waits for any more may be under way, a Release not counted."""
    copies: int = 0
    faults: int = 0
    fault: str = ""
    """restart, wipe or revoke"""
    clock: bool = True
    grants: int = FOREVER
    """No further than so many grants."""
    exclusive: bool = True
    """False where only the order of tokens is promised."""
    liveness: bool = False
    reaches: tuple[str, ...] = ()
    """What must happen somewhere in it, lest it prove nothing."""
    protocol: Protocol = field(default_factory=Protocol)

    @property
    def doubts(self) -> bool:
        """A waiter goes by pushes without the store's clock, unless it has reason to doubt them."""
        return not self.clock and not self.confirms

    def start(self) -> State:
        sights = () if self.clock else ((),) * len(self.ids)
        return State(
            FrozenBook(sights=sights),
            tuple(Client() for _ in self.ids),
            copies=self.copies,
            faults=self.faults,
        )
