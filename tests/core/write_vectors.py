"""Writes the vectors that every store replays, from the ledger in Python.

    python -m tests.core.write_vectors

To be run again when the ledger's answers change on purpose. Plans are those of `told_plans.py`, and some
that Hypothesis draws: the same each time for one version of it.
"""

import json
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from dibs.core import codec, ledger
from dibs.core.book import MemoryBook
from dibs.model import Command, Notification, Reply
from dibs.testing.clock import ManualClock
from dibs.testing.conformance import vectors
from tests.stores.redis.ledger_commands import PLANS
from tests.stores.told_plans import TOLD

DRAWN = 60
"""How many plans are drawn."""

TARGET = Path(vectors.__file__).with_name("vectors.jsonl")


class Reference:
    """The ledger over books in memory, and its clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.books: dict[bytes, MemoryBook] = {}

    def apply(self, batch: Sequence[Command]) -> tuple[list[Reply], list[Notification]]:
        replies, notifications, bound = [], [], ledger.StepBudget()
        for command in batch:
            book = self.books.setdefault(command.key, MemoryBook())
            now, stamp = self.clock.now(), self.clock.stamp()
            reply, more = ledger.apply(book, command, now, stamp, bound)
            replies.append(reply)
            notifications += more
        return replies, notifications


def written(plan: list[Any]) -> dict[str, Any]:
    """One plan, with what the ledger answers to it."""
    reference = Reference()
    return {"steps": [_step(reference, step) for step in plan]}


def _step(reference: Reference, step: Any) -> dict[str, Any]:
    if isinstance(step, float):
        if step > 0:
            reference.clock.advance(step)
            return {"wait": step}
        step = int(step * 1e6)
    if isinstance(step, int):
        reference.clock.step_stamp(step / 1e6)
        return {"wall": step / 1e6}
    replies, notifications = reference.apply(step)
    return {
        "batch": [[each.key.hex(), codec.encode(each)] for each in step],
        "replies": [codec.encode(each) for each in replies],
        "notifications": [
            [n.key.hex(), n.inbox, codec.encode(n)] for n in notifications if n.inbox
        ],
    }


def drawn() -> Iterator[list[Any]]:
    """Plans by chance, without what no JSON can say."""
    found: list[list[Any]] = []

    @settings(
        max_examples=DRAWN * 20,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(plan=PLANS)
    def collect(plan: list[Any]) -> None:
        found.append(plan)

    collect()
    unlike: dict[str, list[Any]] = {}
    for plan in found:  # Hypothesis varies a plan many times over: one of each sort will do
        if all(map(_is_sayable, plan)):
            unlike.setdefault(repr(plan[:2]), plan)
    return iter(sorted(unlike.values(), key=len)[-DRAWN:])


def _is_sayable(step: Any) -> bool:
    if not isinstance(step, list):
        return not isinstance(step, int) or abs(step) < 10**10
    values = [value for command in step for value in codec.encode(command)]
    return all(not isinstance(value, float) or isfinite(value) for value in values)


def main() -> None:
    plans = [*TOLD, *drawn()]
    lines = [json.dumps(written(plan), separators=(",", ":")) for plan in plans]
    TARGET.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} plans, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
