"""What a broker says at once, so that no message is larger than Temporal takes. Pure.

A message that is too large fails the task of the broker that sends it, at each new try: nobody would be
served any more.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from temporalio import workflow

from dibs.model import Failed, Refused, Reply, Status, Waiter
from dibs.stores.temporal.protocol.wire import BrokerAnswer, Packed

A_PART = 256_000
"""So many bytes one signal of several pieces has."""

AN_ANSWER = 400_000
"""With so many bytes in it the rest of an answer is cut short."""

HOLDERS = 8
"""So many a workflow is told of that has waited in vain."""

_BESIDES = 200
"""An answer has not more than that besides its replies, in bytes."""


@dataclass
class Bundle:
    """What waits for an addressee, and which grants it would learn of."""

    notifications: list[Packed] = field(default_factory=list[Packed])
    answers: list[BrokerAnswer] = field(default_factory=list[BrokerAnswer])
    granted: list[str] = field(default_factory=list[str])

    @property
    def size(self) -> int:
        """In bytes, or somewhat more."""
        return sum(map(_size_of_answer, self.answers)) + sum(map(size_of, self.notifications))

    def split(self, most: int = A_PART) -> tuple["Bundle", "Bundle | None"]:
        """As much of it as fits, answers first as they are read first; and the rest.

        All grants go with the first part: what somebody might have heard of is never taken back.
        """
        answers = _fitting([_size_of_answer(each) for each in self.answers], most)
        left = most - sum(map(_size_of_answer, self.answers[:answers]))
        notifications = 0
        if answers == len(self.answers):
            notifications = _fitting(
                [size_of(each) for each in self.notifications], left, none=answers > 0
            )
        rest = Bundle(self.notifications[notifications:], self.answers[answers:])
        part = Bundle(self.notifications[:notifications], self.answers[:answers], self.granted)
        return part, rest if rest.notifications or rest.answers else None


def _fitting(sizes: Sequence[int], most: int, *, none: bool = False) -> int:
    """How many of the first ones; one at least, as there is no other way for it, unless `none` will do."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if total > most and (number or none):
            return number
    return len(sizes)


def _size_of_answer(answer: BrokerAnswer) -> int:
    return size_of(answer.replies) + _BESIDES


def size_of(packed: Any) -> int:
    """In bytes."""
    return len(json.dumps(packed))


def curt(reply: Reply) -> Reply:
    """A reply for which there is little room left in its answer."""
    if isinstance(reply, Refused):
        return replace(reply, holders=())
    if isinstance(reply, Status):
        return Failed("busy", "too much is asked of its broker at once: ask for less at a time")
    return reply


def in_brief(status: Status, leases: set[str]) -> Status:
    """For a workflow that gives up: who was in its way, and where its leases are among those who wait."""
    soonest = sorted(status.holders, key=lambda holder: holder.expires_in)[:1]
    shown = status.holders[:HOLDERS]
    places = [waiter.lease for waiter in status.waiters]
    upto = max((places.index(lease) + 1 for lease in leases if lease in places), default=0)
    return replace(
        status,
        holders=(*shown, *(each for each in soonest if each not in shown)),
        waiters=tuple(Waiter(lease, "", 1, 0, 0.0) for lease in places[:upto]),
    )


def outgrown(events: int, calls: int, most_calls: int) -> bool:
    """Its history is longer than `events`, or the server will soon take no more calls, or says so."""
    info = workflow.info()
    return (
        info.is_continue_as_new_suggested()
        or info.get_current_history_length() > events
        or calls > most_calls
    )
