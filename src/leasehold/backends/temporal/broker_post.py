"""A broker's outgoing post: for each addressee one signal at a time, in order, with all that has gathered."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

from leasehold.backends.temporal import ids
from leasehold.backends.temporal.broker_growth import in_portions
from leasehold.backends.temporal.broker_owners import owner_of
from leasehold.backends.temporal.wire import Answer, News, Packed

_MAILBOX = re.compile("[!-~]{1,200}")
"""What a client of ours may call its mailbox."""

MOST = 500
"""So many signals may be under way: a server takes 2,000 of one workflow; one more would fail its task."""

A_PORTION = 64
"""So many are at a time: of what arrives while a task runs a server keeps 100 for the next one, and then
fails the task, again and again."""


@dataclass
class Letter:
    """What waits for an addressee, and which grants it would learn of."""

    wakeups: list[Packed] = field(default_factory=list[Packed])
    answers: list[Answer] = field(default_factory=list[Answer])
    granted: list[str] = field(default_factory=list[str])


class Post:
    """Letters by inbox. `landed(inbox, letter, there)` is told what became of each."""

    def __init__(
        self,
        key: str,
        landed: Callable[[str, Letter, bool], None],
        state: dict[str, Any] | None = None,
    ) -> None:
        self._key = key
        self._landed = landed
        self._letters = {inbox: _letter(packed) for inbox, packed in (state or {}).items()}
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def dump(self) -> dict[str, Any]:
        """What was not yet sent."""
        return {inbox: asdict(letter) for inbox, letter in self._letters.items()}

    def size(self) -> int:
        """Of that, in bytes."""
        return len(json.dumps(self.dump())) if self._letters else 0

    def to(self, inbox: str) -> Letter:
        """The letter that goes next to an inbox, to be added to; one to nowhere is thrown away."""
        if not _can_be_reached(inbox):
            return Letter()
        return self._letters.setdefault(inbox, Letter())

    @property
    def under_way(self) -> bool:
        """Something was sent and hasn't arrived."""
        return bool(self._under_way)

    @property
    def empty(self) -> bool:
        """There is nothing to send, and nothing under way."""
        return not self._letters and not self._under_way

    def send(self) -> None:
        """Send a letter to each addressee that has got its last, the oldest letters first."""
        ready = [each for each in self._letters if each not in self._under_way]
        busy = len(self._under_way)
        most = A_PORTION if len(ready) + busy > A_PORTION and in_portions() else MOST
        for inbox in ready[: max(most - busy, 0)]:
            letter = self._letters.pop(inbox)
            self._under_way[inbox] = asyncio.create_task(self._deliver(inbox, letter))

    async def _deliver(self, inbox: str, letter: Letter) -> None:
        news = News(self._key, letter.wakeups, letter.answers)
        there = True
        try:
            await _addressee(inbox).signal(ids.NEWS, news)
        except FailureError as error:  # it has closed, or takes no more signals: it won't ever know
            there = False
            workflow.logger.debug("A push could not be delivered: %s", error)
        del self._under_way[inbox]
        self._landed(inbox, letter, there)


def _addressee(inbox: str) -> workflow.ExternalWorkflowHandle[Any]:
    """A workflow's run, or a client's mailbox whatever its run."""
    owner = owner_of(inbox)
    if owner is None:
        return workflow.get_external_workflow_handle(ids.mailbox_id(inbox))
    return workflow.get_external_workflow_handle(owner[0], run_id=owner[1])


def _can_be_reached(inbox: str) -> bool:
    return owner_of(inbox) is not None or bool(_MAILBOX.fullmatch(inbox))


def _letter(packed: dict[str, Any]) -> Letter:
    answers = [Answer(**answer) for answer in packed["answers"]]
    return Letter(packed["wakeups"], answers, packed["granted"])
