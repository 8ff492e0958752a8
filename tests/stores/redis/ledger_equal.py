"""The ledger in Lua beside the one in Python: by the vectors that every store replays, and by chance."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings

from dibs.core.codec import decode_command, decode_notification, decode_reply
from dibs.core.names import fingerprint
from dibs.core.proof import is_proven
from dibs.model import MANY, Acquire, Inspect, Notification, Resize
from dibs.testing.clock import EPOCH, ManualClock
from dibs.testing.conformance.vectors import PLANS, close, plain, without_passing_heads
from tests.core.write_vectors import written
from tests.stores.redis.ledger_commands import PLANS as ANY_PLANS
from tests.stores.redis.ledger_scripted import Scripted
from tests.stores.told_plans import LINE, beat, crowd, leave, wish

ALONE: list[list[Any]] = [
    [[wish("a")], [leave("a")], [Inspect(LINE)], [wish("b", units=2, capacity=2)], [Inspect(LINE)]],
    [[wish("a", lock_delay=4.0)], [Inspect(LINE)], 31.0, [wish("b", queue=False)], [leave("a")]],
    [[wish("a", ttl=3.0)], 3.5, [leave("a")], [wish("b")], [leave("b"), Inspect(LINE)]],
    [[wish("a", capacity=3)], [Inspect(LINE)]],
    [[wish("a", floor=2 * EPOCH)], [leave("a")], [wish("b")]],
    [6_000_000_000_000_000, [wish("a")], [leave("a")], [wish("b")]],
    [[wish("a", units=MANY, capacity=MANY)], [Resize(LINE, "a", 600_000, 1)], [Inspect(LINE)]],
]
"""A mutex that nobody else holds or wants, which is granted and released without a book."""

CROWDS: list[list[Any]] = [
    [crowd(150, waiter_ttl=5.0), 6.0, [beat(149)], *[[Inspect(LINE)]] * 3],
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


def follow(steps: Iterable[Any], subject: Scripted) -> None:
    """One plan. Raises `AssertionError` where an answer differs."""
    subject.redis.flushall()
    clock, ids = ManualClock(), dict[str, str]()
    for step in steps:
        if "wait" in step:
            clock.advance(step["wait"])
        elif "wall" in step:
            clock.step_stamp(step["wall"])
        else:
            batch = step["batch"]
            ids |= {fingerprint(each.id): each.id for each in batch if isinstance(each, Acquire)}
            replies, notifications = subject.apply(batch, now=clock.now(), stamp=clock.stamp())
            for command, reply, expected in zip(batch, replies, step["replies"], strict=True):
                assert close(plain(reply), plain(decode_reply(expected, command.key))), command
            sent = [
                decode_notification(item, bytes.fromhex(key), inbox)
                for key, inbox, item in step["notifications"]
            ]
            expected = [each for each in without_passing_heads(sent) if each.inbox]
            assert in_order(notifications, ids) == in_order(expected, ids), batch


def in_order(notifications: Sequence[Notification], ids: dict[str, str]) -> list[str]:
    """As texts. Redis has another hash than Python's ledger: a proof need only be good."""
    checked = (
        replace(each, proof=str(is_proven(each, ids[each.lease]))) if each.proof else each
        for each in notifications
    )
    return sorted(map(repr, checked))


def steps_of(plan: str) -> Iterator[Any]:
    """A line of `vectors.jsonl`, with its commands decoded."""
    for step in json.loads(plan)["steps"]:
        batch = step.get("batch", ())
        yield {**step, "batch": [decode_command(item, bytes.fromhex(key)) for key, item in batch]}


def answered(plan: list[Any]) -> Iterator[Any]:
    """Another plan, with what the ledger in Python answers to it."""
    for batch, step in zip(plan, written(plan, every=True)["steps"], strict=True):
        yield {**step, "batch": batch}


def first_difference(subject: Scripted) -> int | None:
    """The number of the first plan after which an answer differs."""
    plans = [*map(steps_of, PLANS), *map(answered, (*ALONE, *CROWDS))]
    for number, steps in enumerate(plans):
        try:
            follow(steps, subject)
        except AssertionError:
            return number
    return None


def hold_equal(subject: Scripted, number: int) -> None:
    """Raise where an answer differs, with the smallest plan that shows it."""

    @settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))
    @given(plan=ANY_PLANS)
    def plans(plan: list[Any]) -> None:
        follow(answered(plan), subject)

    plans()
