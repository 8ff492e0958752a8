"""The state of a small world: one key in a store, its clients, and the messages between them.

Every time in a state is relative to the present (a clock's ticks from now on, or ticks ago), so that
a world in which nothing but time has passed comes back to a state it was in, and the search ends.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

from dibs.core.book import Entry, Hold, MemoryBook, QueueEntry, Tombstone, stored_expiry

KEY = b"lock:k"
FOREVER = 1_000_000
"""Longer than anything in a model lasts: it isn't counted down."""
LONG_AGO = 4
"""Older than anything that is still believed: it isn't counted up."""
LONG_SEEN = 6
"""Seen for longer than any entry lives by an observer's clock."""
OVERDUE = 0
"""Expired: how long ago makes no more difference."""

type FrozenEntry = tuple[Any, ...]
type Sights = tuple[tuple[str, int], ...]
"""What one observer has seen of each entry's present beat: the entry's id, its own ticks ago."""
type Call = tuple[Any, ...]
"""A command as a plain tuple: its verb, the id, and what else it says."""
type Trip = tuple[int, int | None]
"""Own ticks since it was sent, store's ticks since it was answered. None: the store has no clock."""
type Message = tuple[Any, ...]
"""`("q", client, live, call)`, `("r", client, reply)` or `("p", client, id, token, slots, ticks ago)`."""


class FrozenBook(NamedTuple):
    last: int = 0
    capacity: int = 0
    doubt: int = 0
    entries: tuple[FrozenEntry, ...] = ()
    sights: tuple[Sights, ...] = ()


class Client(NamedTuple):
    born: int = 0
    """How many ids it has used; the present one is its name and this number."""
    mode: str = "idle"
    """idle, asking, queued, held, or lost: a lease that it no longer believes in"""
    call: Call | None = None
    """What it waits to be answered."""
    sent: int = 0
    """Its own ticks since the first attempt of that call."""
    asked: int = 0
    """How often it sent an Acquire for this id: once, or more (2)."""
    answered: bool = False
    left: int = 0
    """Its own ticks until its deadline."""
    token: int = 0
    slots: tuple[int, ...] = ()
    units: int = 0
    seq: int = 0
    trip: Trip | None = None
    """The last round trip, while it is of use."""
    doubtful: bool = False
    """It waits, and an answer was lost or late, or it was silent. Kept only where the store has no clock."""
    spent: int = 0
    """How many optional things (renewals, resizes) it has done with this id."""

    @property
    def believes(self) -> bool:
        return self.mode == "held" and self.left > 0


class Ghost(NamedTuple):
    """What nobody in the world knows, for the invariants."""

    top: int = 0
    """The highest token that was ever granted."""
    written: tuple[int, ...] = ()
    """For each slot the highest token that a believer showed to the resource."""
    ended: frozenset[str] = frozenset()
    """The ids whose Release the store has carried out."""


class State(NamedTuple):
    book: FrozenBook
    clients: tuple[Client, ...]
    net: tuple[Message, ...] = ()
    phase: int = 0
    """Where the skewed clocks are between two slips."""
    ghost: Ghost = Ghost()
    copies: int = 0
    """How many more messages may be doubled."""
    faults: int = 0
    """How many more restarts or revocations may come."""
    stamp: int = 0


_KINDS: dict[str, type[Entry]] = {"hold": Hold, "place": QueueEntry, "tomb": Tombstone}
_TAGS = {kind: tag for tag, kind in _KINDS.items()}
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in _TAGS}
_AT = {(tag, name): 1 + n for tag, k in _KINDS.items() for n, name in enumerate(_FIELDS[k])}


def part(entry: FrozenEntry, name: str) -> Any:
    return entry[_AT[entry[0], name]]


def freeze_entry(entry: Entry, clock: bool) -> FrozenEntry:
    """An entry without what makes no difference: beats are in the sights, stamps are for people."""
    plain = replace(entry, beat=0, expires=_near(entry.expires) if clock else 0)
    if not isinstance(plain, Tombstone):
        plain.since = 0
    kind = type(plain)
    return (_TAGS[kind], *(getattr(plain, name) for name in _FIELDS[kind]))


def _near(time: float) -> float:
    return FOREVER if time > FOREVER / 2 else max(time, OVERDUE)


def freeze(book: MemoryBook, clock: bool, sights: tuple[Sights, ...] = ()) -> FrozenBook:
    """A book as a value; arrivals are renumbered, since only their order counts.

    So with what a place has seen: only the tokens that nobody claimed, or may not claim, count.
    """
    places = sorted(
        (entry for entry in book.entries() if isinstance(entry, QueueEntry)),
        key=lambda p: p.arrival,
    )
    numbers = {place.id: number for number, place in enumerate(places, 1)}
    doubt = book.doubt if any(place.seen < book.doubt for place in places) else 0
    marks = [0, doubt, *(h.token for h in book.holds() if h.state == "unclaimed")]
    renumbered = (
        replace(entry, arrival=numbers[entry.id], seen=max(m for m in marks if m <= entry.seen))
        if isinstance(entry, QueueEntry)
        else entry
        for entry in book.entries()
    )
    entries = tuple(sorted((freeze_entry(entry, clock) for entry in renumbered), key=_identity))
    return FrozenBook(book.last, book.capacity, doubt, entries, sights)


def _identity(entry: FrozenEntry) -> str:
    return str(entry[1])


def thaw(frozen: FrozenBook, view: Callable[[Entry], float] = stored_expiry) -> MemoryBook:
    """The real book again, at store time 0."""
    book = MemoryBook(frozen.last, view=view)
    book.capacity = frozen.capacity
    book.doubt = frozen.doubt
    for entry in frozen.entries:
        book.put(_KINDS[entry[0]](*entry[1:]))
        book.arrivals += entry[0] == "place"
    return book


def book_a_tick_later(book: FrozenBook, clock: bool, ticks: tuple[int, ...]) -> FrozenBook:
    """The store's clock moves on by one, or each observer's own by its ticks."""
    if clock:
        return book._replace(entries=tuple(_entry_a_tick_later(entry) for entry in book.entries))
    return book._replace(
        sights=tuple(
            tuple((seen, min(ago + by, LONG_SEEN)) for seen, ago in sights)
            for sights, by in zip(book.sights, ticks, strict=True)
        )
    )


def _entry_a_tick_later(entry: FrozenEntry) -> FrozenEntry:
    at = _AT[entry[0], "expires"]
    if entry[at] == FOREVER:
        return entry
    return (*entry[:at], max(entry[at] - 1, OVERDUE), *entry[at + 1 :])


# ---- tokens: only their order matters -------------------------------------------------------------


def renumbered(state: State) -> State:
    """The same state with the smallest tokens that are in the same order."""
    book, ghost = state.book, state.ghost
    if book.last < 2:
        return state
    tokens = {
        0,
        book.last,
        book.doubt,
        ghost.top,
        *ghost.written,
        *(c.token for c in state.clients),
    }
    tokens |= {entry[_TOKENS[entry[0]]] for entry in book.entries if entry[0] in _TOKENS}
    tokens |= {message[3] for message in state.net if message[0] == "p"}
    tokens |= {m[2][1] for m in state.net if m[0] == "r" and m[2][0] == "granted"}
    if max(tokens) == len(tokens) - 1:
        return state
    new = {token: number for number, token in enumerate(sorted(tokens))}
    return state._replace(
        book=book._replace(
            last=new[book.last],
            doubt=new[book.doubt],
            entries=tuple(_retoken(entry, new) for entry in book.entries),
        ),
        clients=tuple(client._replace(token=new[client.token]) for client in state.clients),
        net=tuple(sorted(_readdressed(message, new) for message in state.net)),
        ghost=ghost._replace(
            top=new[ghost.top], written=tuple(new[token] for token in ghost.written)
        ),
    )


_TOKENS = {"hold": _AT["hold", "token"], "place": _AT["place", "seen"]}


def _retoken(entry: FrozenEntry, new: dict[int, int]) -> FrozenEntry:
    at = _TOKENS.get(entry[0])
    if at is None:
        return entry
    return (*entry[:at], new[entry[at]], *entry[at + 1 :])


def _readdressed(message: Message, new: dict[int, int]) -> Message:
    if message[0] == "p":
        return (*message[:3], new[message[3]], *message[4:])
    if message[0] == "r" and message[2][0] == "granted":
        return (*message[:2], ("granted", new[message[2][1]], *message[2][2:]))
    return message
