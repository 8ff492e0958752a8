"""How large a small world is, what may go wrong in it, and what its clients believe."""

from dataclasses import dataclass, field

from tests.model.world import FOREVER, LONG_AGO, Client, FrozenBook, State, Trip

EVERY = 3
"""A skewed clock slips by a tick once in so many of the store's, or in more."""
MARGIN = 1
"""One tick: as much as a skewed clock slips within a ttl."""


class Protocol:
    """The arithmetic of an honest client, in whole ticks: DESIGN §2 and §3 in a few lines.

    A mutant client is a subclass with one of these wrong.
    """

    margin = MARGIN

    def left(self, ttl: float, sent: int) -> int:
        """Ticks until the deadline after an answer: counted from the *first* sending of the call."""
        return int(ttl) - self.margin - sent

    def left_of_push(self, window: float, trip: Trip | None, granted: int) -> int | None:
        """Ticks until the deadline of a pushed grant, or None where the figure is in doubt.

        The last round trip was sent at `s` and answered at store time `n`, and the grant's store time
        minus `n` has passed since, at least: the deadline is s + (granted_at - n) + window - margin.
        The margin allows for a clock that slips within the window; this clock may also have slipped
        while it waited for the grant.

        Where the store has no clock, the grant came after `s`: an answer said that the id waited.
        """
        if trip is None:
            return None
        own_since_sent, since_answered = trip
        if since_answered is None:
            return int(window) - self.margin - own_since_sent
        if granted >= LONG_AGO:
            return None
        waited = since_answered - granted
        return waited - self.slip(waited) + int(window) - self.margin - own_since_sent

    def slip(self, waited: int) -> int:
        """By how much this clock may be late after `waited` of the store's ticks."""
        return -(-waited // EVERY)

    def doubted(self, client: Client) -> Client:
        """A waiter without the store's clock, once an answer was lost or late, or it was silent.

        A grant may have been claimed and have ended unseen, so that a push may be of that one.
        """
        return client._replace(doubtful=True, trip=None)

    def was_silent(self, client: Client, tombstone: int) -> bool:
        """Whether a tombstone of a waiter's id may be gone, and the id wait anew, once it speaks now."""
        since_sent = LONG_AGO if client.trip is None else client.trip[0]
        return since_sent > tombstone / 2

    def set_tombstone(self, client: Client) -> int:
        """A copy of the Acquire may still be on its way if one was never answered, or sent twice."""
        return FOREVER if client.asked > 1 or not client.answered else 0

    def gone(self, client: Client) -> Client:
        """What it believes once it has sent its Release: nothing, and no late answer revives it."""
        return Client(born=client.born)

    def shrunk(self, client: Client) -> Client:
        """What it believes once it has sent a Resize to one unit: it counts on the others no more."""
        return client._replace(units=1, slots=client.slots[:1])


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
    reaches: str = ""
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
