"""The ledger over books in memory, and the plans that stores of rows are compared with it by.

A plan is a list of batches, of seconds that pass (floats), and of microseconds by which the wall clock alone
is stepped (integers); `"sweep"` deletes idle keys.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.core.codec import decode_command
from dibs.model import Command, Inspect, Notification, Refused, Release, Reply
from dibs.testing.conformance import vectors
from tests.stores.told_plans import LINE, leave, wish

type Outcome = tuple[list[Reply], list[Notification]]

NOON = 1_700_000_000_000_000


class Time:
    """The store time and the wall clock, moved by a plan."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.wall = NOON

    def now(self) -> float:
        return self.time

    def stamp(self) -> int:
        return self.wall

    def pass_by(self, seconds: float) -> None:
        self.time += seconds
        self.wall += int(seconds * 1e6)


class Reference:
    """The ledger over books in memory."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.floor = 0
        self.books: dict[bytes, MemoryBook] = {}

    def apply(self, batch: Sequence[Command]) -> Outcome:
        replies: list[Reply] = []
        notifications: list[Notification] = []
        bound = ledger.StepBudget()
        for command in batch:
            book = self.books.setdefault(command.key, MemoryBook(self.floor))
            now, stamp = self.time.now(), self.time.stamp()
            reply, more = ledger.apply(book, command, now, stamp, bound)
            replies.append(reply)
            notifications += more
        return replies, notifications

    def sweep(self) -> list[Notification]:
        """Settle every key, and delete those that are idle."""
        notifications: list[Notification] = []
        for key in list(self.books):
            notifications += self.apply([Inspect(key)])[1]
            if self.books[key].idle:
                self.floor = max(self.floor, self.books.pop(key).last)
        return notifications


def plain(reply: Reply) -> Reply:
    """Refusals name holders in any order, and of many holders any."""
    if not isinstance(reply, Refused):
        return reply
    holders = sorted(reply.holders, key=lambda holder: (holder.token, holder.lease))
    shown = tuple(holders) if len(holders) < ledger.HOLDERS_NAMED else ()
    return Refused(reply.reason, shown, reply.recheck_in)


def _plan_of(vector: str) -> Iterator[Any]:
    for step in json.loads(vector)["steps"]:
        if "wait" in step:
            yield step["wait"]
        elif "wall" in step:
            yield int(step["wall"] * 1e6)
        else:
            yield [decode_command(fields, bytes.fromhex(key)) for key, fields in step["batch"]]


VECTORS: list[list[Any]] = [list(_plan_of(vector)) for vector in vectors.PLANS]

SWEPT: list[Any] = [
    [wish("a"), wish("b", inbox="here")],
    "sweep",
    [leave("a"), leave("b"), Inspect(LINE)],
    "sweep",
    -3_600_000_000,
    [wish("a"), Release(b"lock:c", "nothing"), Inspect(LINE)],
    31.0,
    "sweep",
    "sweep",
    [wish("c")],
]
"""Tokens still rise after a key was deleted, also if the wall clock was stepped back."""
