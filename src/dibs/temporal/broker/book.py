"""One key's book at its broker: the ledger, with other rules for waiters that are workflows. Pure.

A workflow that waits sends no heartbeats, since each would stay in its history. So it keeps its position
until a signal no longer reaches it, and the broker claims its grant for it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import Any

from dibs.core import ledger
from dibs.core.book import Entry, Hold, MemoryBook, QueueEntry, Tombstone, first_release
from dibs.core.codec import INTEGER_LIMIT
from dibs.core.names import fingerprint
from dibs.core.proof import proof_of
from dibs.core.timing import BATCH_STEPS
from dibs.core.transition import Transition
from dibs.model import (
    Acquire,
    Command,
    Inspect,
    Notification,
    Refused,
    Release,
    Renew,
    Reply,
    Status,
    Waiter,
)
from dibs.stores.snapshot import dump, load
from dibs.stores.temporal.wire import AGES
from dibs.temporal.broker.owners import Owner, owner_of

QUEUE_LIMIT = 1_500
"""Waiters that one key can have."""

ROOM = 1_200_000
"""Bytes of JSON that a book can have. The next run takes it over, in a message of 2 MB at most."""

ENTRY = 350
"""Bytes that a hold or a waiter has at most besides its texts."""

TOMBSTONE = 150
"""Bytes of a tombstone."""

FULL_AGAIN = 1.0
"""Seconds after which a client that found no room asks again."""

HOLDERS = 8
"""Holders in the error of a workflow that has waited in vain."""


class BrokerBook:
    """One key's book, and what the broker knows about the workflows in it."""

    def __init__(self, key: bytes, state: dict[str, Any] | None = None) -> None:
        state = state or {}
        book = state.get("book")
        self.key: bytes = key
        self.book: MemoryBook = load(book, QUEUE_LIMIT) if book else MemoryBook(0, QUEUE_LIMIT)
        self._sizes = {entry.id: _size(entry) for entry in self.book.entries()}
        """Bytes of each entry, also of some that have ended."""
        self._size = sum(self._sizes.values())
        self._unfinished = False
        """The last `settle` has left work to be done at once."""
        self._asked: dict[str, float] = state.get("asked", {})
        """The ttl that each waiting workflow asked for, by id."""
        self._fast: dict[str, Owner] = {
            entry_id: (owner[0], owner[1]) for entry_id, owner in state.get("fast", {}).items()
        }

    def dump(self) -> dict[str, Any]:
        """For the next run."""
        self._forget_ended()
        return {"book": dump(self.book), "asked": self._asked, "fast": self._fast}

    # -- commands -----------------------------------------------------------------------------------

    def apply(self, command: Command, now: float, stamp: int) -> tuple[Reply, list[Notification]]:
        """Apply a command, which `unpack_command` has checked."""
        if isinstance(command, Acquire | Release) and not self._has_room_for(command):
            return Refused("queue_full", (), FULL_AGAIN), []
        if isinstance(command, Acquire) and owner_of(command.inbox):
            command = replace(command, waiter_ttl=min(command.waiter_ttl, AGES))
        answer = ledger.apply(self.book, command, now, stamp)
        self._exempt_from_heartbeats(getattr(command, "id", ""))
        return answer

    def _has_room_for(self, command: Acquire | Release) -> bool:
        if self.book.get(command.id) is not None:
            return True
        if isinstance(command, Release):
            if command.tombstone:  # small, and soon gone
                self._count(command.id, TOMBSTONE)
            return True
        needed = _size(command)
        if self._size + needed > ROOM and any(self.book.get(each) is None for each in self._sizes):
            self._sizes = {entry.id: _size(entry) for entry in self.book.entries()}
            self._size = sum(self._sizes.values())
        if self._size + needed > ROOM:
            return False
        self._count(command.id, needed)
        return True

    def _count(self, entry_id: str, size: int) -> None:
        self._size += size - self._sizes.get(entry_id, 0)
        self._sizes[entry_id] = size

    def settle(self, now: float, stamp: int) -> list[Notification]:
        """Expire and grant what is due, or the first part of it. Return the notifications."""
        transition = Transition(self.book, self.key, now, stamp)
        transition.steps = BATCH_STEPS
        first = self.book.first()
        transition.settle()
        self._unfinished = not transition.steps
        transition.notify_new_head(first)
        return transition.notifications

    def status(self, now: float, stamp: int) -> Status:
        """The status, computed on a copy, since a query must change nothing."""
        copy = load(dump(self.book), QUEUE_LIMIT)
        reply, _ = ledger.apply(copy, Inspect(self.key), now, stamp)
        assert isinstance(reply, Status)
        return reply

    def front(self, most: int) -> set[str]:
        """The first inboxes of plain clients, in the order of the queue and then of the holders."""
        found: dict[str, None] = {}
        entries: Iterable[QueueEntry | Hold] = chain(self.book.queue(), self.book.holds())
        for entry in entries:
            if entry.inbox and not owner_of(entry.inbox):
                found[entry.inbox] = None
                if len(found) == most:
                    break
        return set(found)

    def ahead(self, inbox: str, most: int) -> int | None:
        """How many must leave before an inbox is in `front`; None if that has no use for it."""
        if inbox in self.front(most):
            return 0
        before: set[str] = set()
        for place in self.book.queue():
            if place.inbox == inbox:
                return max(len(before) + 1 - most, 1)
            before.add(place.inbox)
        return None

    # -- workflows ----------------------------------------------------------------------------------

    def _exempt_from_heartbeats(self, entry_id: str) -> None:
        """Keep the ledger from passing over a workflow, which sends no heartbeats."""
        place = self.book.get(entry_id)
        if isinstance(place, QueueEntry) and owner_of(place.inbox):
            place.silence = inf
            place.seen = INTEGER_LIMIT
            self._asked[entry_id] = place.grant_ttl

    def mark_fast(self, command: Command, owner: Owner) -> None:
        """Note that the lease of this command ends with that run."""
        if isinstance(command, Acquire | Renew) and self.book.get(command.id) is not None:
            self._fast[command.id] = owner

    def fast_owners(self) -> list[Owner]:
        """Runs with whose end their leases end."""
        self._forget_ended()
        return sorted({self._fast[hold.id] for hold in self.book.holds() if hold.id in self._fast})

    def head_owner(self) -> Owner | None:
        """The workflow at the head of the queue. If it has closed, it would block the others."""
        head = self.book.first()
        return owner_of(head.inbox) if head is not None else None

    def ids_granted(self, notifications: Sequence[Notification]) -> dict[str, list[str]]:
        """The ids that these notifications grant, by inbox."""
        leases = {
            notification.lease for notification in notifications if notification.event == "granted"
        }
        found: dict[str, list[str]] = {}
        if leases:
            for hold in self.book.holds():
                if hold.state == "unclaimed" and fingerprint(hold.id) in leases:
                    found.setdefault(hold.inbox, []).append(hold.id)
        return found

    def claimed(
        self, ids: Sequence[str], notifications: Sequence[Notification], now: float, stamp: int
    ) -> list[Notification]:
        """Claim these grants for workflows, and return the notifications with their whole ttl.

        If the signal is delivered, it is in the history of a running workflow, which will act on it. If the
        workflow has closed, its grant is taken back, however late that is known.

        This is no command, because a command can grant others what an earlier one has left over.
        """
        stands: dict[str, tuple[str, float]] = {}
        for entry_id in ids:
            hold = self.book.get(entry_id)
            if isinstance(hold, Hold) and hold.state == "unclaimed":
                ttl = self._asked.pop(entry_id, hold.ttl)
                Transition(self.book, self.key, now, stamp).claim(hold, ttl)
                stands[fingerprint(entry_id)] = entry_id, ttl
        return [
            _standing(each, *stands[each.lease]) if each.lease in stands else each
            for each in notifications
        ]

    def gone(
        self, missed: Mapping[str, Sequence[str]], now: float, stamp: int
    ) -> list[Notification]:
        """Release positions of closed workflows, and the grants that never reached them, both by inbox."""
        lost: dict[str, list[str]] = {inbox: [] for inbox in missed}
        for entry in self.book.entries():
            inbox = getattr(entry, "inbox", "")
            if inbox in lost and _goes_with_its_owner(entry, missed[inbox]):
                lost[inbox].append(entry.id)
        return self._release([each for ids in lost.values() for each in ids], now, stamp)

    def closed(self, owners: Sequence[Owner], now: float, stamp: int) -> list[Notification]:
        """Release the leases of runs that have closed."""
        return self._release([e for e, owner in self._fast.items() if owner in owners], now, stamp)

    def _release(self, ids: Sequence[str], now: float, stamp: int) -> list[Notification]:
        told: list[Notification] = []
        for entry_id in ids:
            told += ledger.apply(self.book, Release(self.key, entry_id), now, stamp)[1]
        return told

    def _forget_ended(self) -> None:
        for known in (self._asked, self._fast):
            for entry_id in [each for each in known if self.book.get(each) is None]:
                del known[entry_id]

    # -- time ---------------------------------------------------------------------------------------

    def next_change(self, now: float) -> float | None:
        """Time of the next change for a waiter that needs no command. None if nobody waits."""
        if not self.book.waiting:
            return None
        if self._unfinished:
            return now
        times = [first_release(self.book)]
        for place in self.book.queue():
            heard = place.expires - place.ttl
            silent = heard + place.silence
            times += [place.expires, *([silent] if silent > now else [])]
            if silent > now and place.seen >= self.book.doubt:
                break
        return max(min(times), now)

    def last_expiry(self, now: float) -> float:
        """Time at which the last of the present entries that can expire has expired."""
        ends = (entry.expires for entry in self.book.entries())
        return max((at for at in ends if at < now + AGES / 2), default=0.0)


def _goes_with_its_owner(entry: Entry, unheard: Sequence[str]) -> bool:
    """Whether the entry is a waiter, or a grant that its workflow cannot know of."""
    if isinstance(entry, Hold):
        return entry.state == "unclaimed" or entry.id in unheard
    return isinstance(entry, QueueEntry)


def _standing(given: Notification, lease_id: str, ttl: float) -> Notification:
    """The notification of a grant that is claimed for its whole ttl."""
    proof = proof_of(given.key, lease_id, given.token, given.slots, given.granted_at, ttl)
    return replace(given, claim_timeout=ttl, proof=proof)


def _size(entry: Entry | Acquire) -> int:
    if isinstance(entry, Tombstone):
        return TOMBSTONE
    return ENTRY + len(json.dumps((entry.owner, entry.note, entry.inbox)))


def in_brief(status: Status, leases: set[str]) -> Status:
    """The part of a status that a workflow needs: some holders, and the queue up to these leases."""
    soonest = sorted(status.holders, key=lambda holder: holder.expires_in)[:1]
    shown = status.holders[:HOLDERS]
    places = [waiter.lease for waiter in status.waiters]
    upto = max((places.index(lease) + 1 for lease in leases if lease in places), default=0)
    return replace(
        status,
        holders=(*shown, *(each for each in soonest if each not in shown)),
        waiters=tuple(Waiter(lease, "", 1, 0, 0.0) for lease in places[:upto]),
    )
