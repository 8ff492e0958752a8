"""The answers that a store without a clock gives to the vectors, and how they are compared.

Such a store cannot answer word for word. An entry ends once its only observer has seen it for 1.01 times
its ttl, and tokens begin with the date of the store's server. So the ledger runs beside the store, by the
same rule, and tokens are compared by their order. Two things are not compared, because they follow the
server's date, which no test can set: the ages of leases and waiters, and the time of a grant.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast, overload

from dibs.core import ledger
from dibs.core.book import Book, MemoryBook
from dibs.model import (
    Command,
    Granted,
    Holder,
    Notification,
    Queued,
    Refused,
    Reply,
    Status,
)
from dibs.stores.cas.clock import Sightings, Time
from dibs.testing.clock import ManualClock

ROUNDING = 1e-5
"""Seconds by which times may differ after arithmetic with seconds since 1970."""


class ObservedLedger:
    """The ledger over a book for each key, as a process sees it whose store has no clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._keys: dict[bytes, tuple[MemoryBook, Sightings]] = {}

    def apply(self, batch: Sequence[Command]) -> tuple[list[Reply], list[Notification]]:
        """Apply a batch: the commands of each key in order and at one moment."""
        now = self._clock.now()
        stamp = self._clock.stamp()
        counts = [each.key for each in batch]
        budgets = {key: ledger.StepBudget() for key in counts if counts.count(key) > 1}
        replies: list[Reply] = []
        notifications: list[Notification] = []
        for command in batch:
            book, sightings = self._keys.setdefault(command.key, (MemoryBook(), Sightings()))
            book.expires_at = sightings.view(Time(now, 0.0, None, stamp))
            as_book = cast(Book, book)
            reply, sent = ledger.apply(as_book, command, now, stamp, budgets.get(command.key))
            self._keys[command.key] = (book, sightings.of(book.entries()))
            replies.append(reply)
            notifications += sent
        return replies, notifications


class TokenOrder:
    """Which token of the store stands for which one of the ledger. In both, newer ones are larger."""

    def __init__(self) -> None:
        self._known: dict[bytes, dict[int, int]] = {}

    def agree(self, key: bytes, expected: Sequence[int], found: Sequence[int]) -> bool:
        """Return whether these can stand for each other. If so, that is what they do from now on."""
        if len(expected) != len(found):
            return False
        known = dict(self._known.get(key, {0: 0}))
        for ours, theirs in zip(expected, found, strict=True):
            if known.setdefault(ours, theirs) != theirs:
                return False
        in_order = [known[token] for token in sorted(known)]
        if any(later <= token for token, later in pairwise(in_order)):
            return False
        self._known[key] = known
        return True


@overload
def without_tokens(message: Notification) -> tuple[Notification, list[int]]: ...
@overload
def without_tokens(message: Reply) -> tuple[Reply, list[int]]: ...
def without_tokens(message: Reply | Notification) -> tuple[Reply | Notification, list[int]]:
    """A message without its tokens and without what follows the server's date; and the tokens."""
    match message:
        case Granted(token):
            return replace(message, token=0), [token]
        case Notification(token=token):
            return replace(message, token=0, granted_at=0.0), [token]
        case Queued():
            return replace(message, now=0.0), []
        case Refused(holders=holders):
            return replace(message, holders=_plain(holders)), [each.token for each in holders]
        case Status(holders=holders, waiters=waiters, last_token=last):
            plain = replace(
                message,
                holders=_plain(holders),
                waiters=tuple(replace(each, waited=0.0) for each in waiters),
                last_token=0,
            )
            return plain, [last, *(each.token for each in holders)]
        case _:
            return message, []


def _plain(holders: Sequence[Holder]) -> tuple[Holder, ...]:
    return tuple(replace(each, token=0, held_for=0.0) for each in holders)
