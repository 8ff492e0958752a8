"""Which slots a sharing broker may grant: the others are in its book as taken, by nobody. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from dibs.backends.temporal.broker.desk import Desk
from dibs.backends.temporal.protocol import ids
from dibs.backends.temporal.protocol.bounds import AGES, LOOKS_AGAIN, MOST_SLOTS
from dibs.core.book import Hold
from dibs.core.names import split_key
from dibs.errors import InvalidName
from dibs.model import Acquire, Command, Holder, Refused, Reply, Resize, Status

SHOWN = 8

MARK = "permit/"  # no lease's id: those have no slash


def shareable(key: bytes) -> bool:
    """Slot mode knows semaphores and locks, whose names are text."""
    kind, _, name = key.partition(b":")
    return kind in (b"semaphore", b"lock") and _has_permits(name)


def _has_permits(name: bytes) -> bool:
    """Every slot's permit has a workflow ID; where that would be too long slot mode can't take one either."""
    try:
        return bool(ids.permit_id(name.decode(), str(MOST_SLOTS - 1)))
    except (UnicodeDecodeError, InvalidName):
        return False


class Slots:
    """The slots of a desk's book, by whether this broker has their permits."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.resource = split_key(desk.key)[1].decode()
        self.foreign: set[int] = set()
        """Those that workflows had when we last tried."""

    def permit_id(self, slot: int) -> str:
        """The workflow ID that is the lock on a slot."""
        return ids.permit_id(self.resource, str(slot))

    def flaw(self, command: Command) -> str | None:
        """Why there can't be permits for what is asked."""
        if isinstance(command, Acquire) and command.capacity > MOST_SLOTS:
            return (
                f"a semaphore whose permits workflows take as well has {MOST_SLOTS} slots at most: if no "
                "workflow takes them without a broker, say share=false in the URL, or share=False in "
                "workflow code, and that from the first"
            )
        return None

    # -- closing and opening ------------------------------------------------------------------------

    def fit(self, command: Command, ours: Iterable[int], now: float) -> None:
        """A new id may bring a new capacity: its slots are closed before the ledger can grant them."""
        if isinstance(command, Acquire) and self._is_new(command):
            wanted = set(range(command.capacity)) - set(ours)
            for slot in sorted(wanted - self.closed()):
                self.close(slot, now)

    def open_surplus(self) -> bool:
        """Slots beyond the capacity, as the ledger has it by now, would only take room in the book."""
        surplus = [slot for slot in self.closed() if slot >= self._desk.book.capacity]
        for slot in surplus:
            self.open(slot)
        return bool(surplus)

    def _is_new(self, command: Acquire) -> bool:
        known = self._desk.book.get(command.id) is not None
        return not known and 1 <= command.units <= command.capacity

    def closed(self) -> set[int]:
        """The slots that only their permits are missing for."""
        holds = self._desk.book.holds()
        return {hold.slots[0] for hold in holds if hold.id.startswith(MARK)}

    def close(self, slot: int, now: float) -> None:
        """Nobody is granted it."""
        self._desk.book.put(
            Hold(
                id=f"{MARK}{slot}",
                owner=self.permit_id(slot),
                token=0,
                units=1,
                slots=(slot,),
                ttl=AGES,
                expires=now + AGES,
                state="kept",
            )
        )

    def close_again(self, slot: int, now: float) -> None:
        """Likewise; a slot beyond the capacity nobody is granted anyway."""
        if slot < self._desk.book.capacity:
            self.close(slot, now)

    def close_all(self, now: float) -> set[int]:
        """Every slot, those in use as well; return the latter."""
        for slot in range(min(self._desk.book.capacity, MOST_SLOTS)):
            self.close(slot, now)
        return self.in_use()

    def note_foreign(self, slot: int, now: float) -> None:
        """A workflow has its permit."""
        hold = self._desk.book.get(f"{MARK}{slot}")
        if isinstance(hold, Hold) and slot not in self.foreign:
            hold.since = int(now * 1e6)
        self.foreign.add(slot)

    def open(self, slot: int) -> None:
        """It is ours to grant."""
        self.foreign.discard(slot)
        hold = self._desk.book.get(f"{MARK}{slot}")
        if hold is not None:
            self._desk.book.remove(hold)

    # -- what is wanted, what is used ---------------------------------------------------------------

    def wanted_by(self, command: Command) -> list[int]:
        """The closed slots with which a command would be granted at once; none if that's not enough.

        Never for somebody behind a queue, who has to wait in any case.
        """
        book = self._desk.book
        if isinstance(command, Acquire):
            if book.waiting or not self._is_new(command):
                return []
            return self._to_open(self._missing_for(command), command.capacity)
        if isinstance(command, Resize):
            hold = book.get(command.id)
            grows = isinstance(hold, Hold) and command.units > hold.units
            if isinstance(hold, Hold) and grows:
                return self._to_open(book.used - hold.units + command.units - book.capacity)
        return []

    def wanted_by_head(self) -> list[int]:
        """The closed slots with which the head of the queue would be granted."""
        book = self._desk.book
        head = book.first()
        return self._to_open(book.used + head.units - book.capacity) if head is not None else []

    def _to_open(self, missing: int, capacity: int | None = None) -> list[int]:
        limit = self._desk.book.capacity if capacity is None else capacity
        closed = sorted(slot for slot in self.closed() if slot < limit)
        return closed if 0 < missing <= len(closed) else []

    def still_missing(self, command: Command | None) -> int:
        """How many more slots have to be opened for a command, or for the head of the queue."""
        book = self._desk.book
        if isinstance(command, Acquire):
            return self._missing_for(command)
        if isinstance(command, Resize):
            hold = book.get(command.id)
            had = hold.units if isinstance(hold, Hold) else 0
            return book.used - had + command.units - book.capacity
        head = book.first()
        return book.used + head.units - book.capacity if head is not None else 0

    def _missing_for(self, command: Acquire) -> int:
        surplus = sum(slot >= command.capacity for slot in self.closed())
        return self._desk.book.used - surplus + command.units - command.capacity

    def ends(self) -> dict[int, float]:
        """Until when each slot in use is granted, by the time of the book."""
        found: dict[int, float] = {}
        for hold in self._desk.book.holds():
            if not hold.id.startswith(MARK):
                for slot in hold.slots:
                    found[slot] = max(hold.expires, found.get(slot, 0.0))
        return found

    def in_use(self) -> set[int]:
        """The slots that somebody has been granted, and those of units that are kept."""
        holds = self._desk.book.holds()
        return {slot for hold in holds if not hold.id.startswith(MARK) for slot in hold.slots}

    def holders_of(self, slot: int) -> list[Hold]:
        """Who has been granted a slot."""
        return [
            hold
            for hold in self._desk.book.holds()
            if slot in hold.slots and not hold.id.startswith(MARK)
        ]

    @property
    def nothing_else(self) -> bool:
        """The book has only closed slots."""
        return all(entry.id.startswith(MARK) for entry in self._desk.book.entries())

    # -- what people see ----------------------------------------------------------------------------

    def seen(self, reply: Reply, now: float, stamp: int) -> Reply:
        """A closed slot is shown as held only if a workflow has its permit."""
        if isinstance(reply, Status):
            return replace(reply, holders=self._seen(reply.holders))
        if isinstance(reply, Refused) and reply.reason in ("held", "closed") and self.closed():
            holders = self._seen(self._desk.status(now, stamp).holders)[:SHOWN]
            return replace(reply, reason="held", holders=holders)
        return reply

    def _seen(self, holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
        """Those of ours first. When a workflow's permit ends we can't tell, only when we look again."""
        closed = {self.permit_id(slot): slot for slot in self.closed()}
        ours = [each for each in holders if each.state != "kept" or each.owner not in closed]
        theirs = [
            replace(each, expires_in=LOOKS_AGAIN)
            for each in holders
            if each.state == "kept" and closed.get(each.owner) in self.foreign
        ]
        return (*ours, *theirs)
