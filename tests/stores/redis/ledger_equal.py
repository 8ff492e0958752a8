"""Holding the ledger in Lua equal to the one in Python."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.core.names import fingerprint
from dibs.core.proof import is_proven
from dibs.model import MANY, Acquire, Command, Inspect, Notification, Refused, Reply, Resize
from tests.stores.redis.ledger_commands import PLANS
from tests.stores.redis.ledger_scripted import STAMP, Scripted
from tests.stores.told_plans import LINE, TOLD, beat, crowd, leave, wish

ALONE: list[list[Any]] = [
    [[wish("a")], [leave("a")], [Inspect(LINE)], [wish("b", units=2, capacity=2)], [Inspect(LINE)]],
    [[wish("a", lock_delay=4.0)], [Inspect(LINE)], 31.0, [wish("b", queue=False)], [leave("a")]],
    [[wish("a", ttl=3.0)], 3.5, [leave("a")], [wish("b")], [leave("b"), Inspect(LINE)]],
    [[wish("a", units=MANY, capacity=MANY)], [Resize(LINE, "a", 600_000, 1)], [Inspect(LINE)]],
]
"""A mutex that nobody else holds or wants, which is granted and released without a book."""

CROWDS: list[list[Any]] = [
    [
        crowd(150, waiter_ttl=5.0),
        6.0,
        [beat(149)],
        [Inspect(LINE)],
        [Inspect(LINE)],
        [Inspect(LINE)],
    ],
    [crowd(450, waiter_ttl=5.0), 6.0, [Inspect(LINE)] * 7, [wish("x")], [Inspect(LINE)] * 3],
    [
        [wish(f"w{n}", capacity=200, ttl=5.0, queue=False) for n in range(200)],
        [wish(f"x{n}", capacity=200, waiter_ttl=90.0) for n in range(200)],
        6.0,
        [beat(199), Inspect(LINE)],
        [Inspect(LINE)],
        [Inspect(LINE)] * 5,
    ],
]
"""More ends at once, or is free at once, than one command or one batch settles."""


class Reference:
    """The ledger over books in memory."""

    def __init__(self) -> None:
        self.books: dict[bytes, MemoryBook] = {}

    def apply(
        self, batch: Sequence[Command], now: float, stamp: int
    ) -> tuple[list[Reply], list[Notification]]:
        replies, notifications, bound = [], [], ledger.Batch()
        for command in batch:
            book = self.books.setdefault(command.key, MemoryBook())
            reply, more = ledger.apply(book, command, now, stamp, bound)
            replies.append(reply)
            notifications += more
        return replies, [
            notification for notification in last_words(notifications) if notification.inbox
        ]


def last_words(notifications: Sequence[Notification]) -> list[Notification]:
    """Without those to whoever was the head of a queue for a moment only, in the midst of a batch."""
    later: list[Notification] = []
    kept: list[Notification] = []
    for notification in reversed(notifications):
        is_old = any(
            other.lease == notification.lease
            or (other.event, other.key) == ("head", notification.key)
            for other in later
        )
        if notification.event != "head" or not is_old:
            kept.append(notification)
        later.append(notification)
    return kept


def plain(reply: Reply) -> Reply:
    """Refusals name holders in any order, and of many holders any."""
    if not isinstance(reply, Refused):
        return reply
    holders = sorted(reply.holders, key=lambda holder: (holder.token, holder.lease))
    shown = tuple(holders) if len(holders) < ledger.HOLDERS_NAMED else ()
    return Refused(reply.reason, shown, reply.recheck_in)


def in_order(notifications: Sequence[Notification], ids: Mapping[str, str]) -> list[str]:
    """Redis has another hash than Python's ledger: a proof need only be good."""
    checked = (
        replace(each, proof=str(is_proven(each, ids[each.lease]))) if each.proof else each
        for each in notifications
    )
    return sorted(map(repr, checked))


def follow(plan: list[Any], subject: Scripted) -> None:
    """One plan: time passes, the wall clock is set, batches are applied."""
    subject.redis.flushall()
    reference, now, stamp = Reference(), 1000.0, STAMP
    ids: dict[str, str] = {}
    for step in plan:
        if isinstance(step, float):
            now += step
            stamp += int(step * 1e6)
        elif isinstance(step, int):
            stamp = step if step > STAMP else max(stamp + step, 0)
        else:
            ids |= {fingerprint(each.id): each.id for each in step if isinstance(each, Acquire)}
            expected, expected_notifications = reference.apply(step, now, stamp)
            replies, notifications = subject.apply(step, now=now, stamp=stamp)
            assert [plain(r) for r in replies] == [plain(r) for r in expected], step
            assert in_order(notifications, ids) == in_order(expected_notifications, ids), step


_SETTINGS: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


def hold_equal(subject: Scripted, examples: int, **more: Any) -> None:
    """Raises where an answer differs, with the smallest plan that shows it."""
    for plan in [*TOLD, *ALONE, *CROWDS]:
        follow(plan, subject)

    @settings(max_examples=examples, **_SETTINGS, **more)
    @given(plan=PLANS)
    def plans(plan: list[Any]) -> None:
        follow(plan, subject)

    plans()


@cache
def some_plans(count: int) -> Sequence[list[Any]]:
    """The same each time, to be followed by many."""
    found: list[list[Any]] = []

    @settings(
        max_examples=count, phases=[Phase.generate], derandomize=True, database=None, **_SETTINGS
    )
    @given(plan=PLANS)
    def collect(plan: list[Any]) -> None:
        found.append(plan)

    collect()
    return found


def first_difference(subject: Scripted, examples: int) -> int | None:
    """The number of the first plan after which an answer differs."""
    for number, plan in enumerate([*TOLD, *ALONE, *CROWDS, *some_plans(examples)]):
        try:
            follow(plan, subject)
        except AssertionError:
            return number
    return None
