"""A broker's signals to workflows."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import BrokerAnswer, News, Packed
from dibs.temporal.broker.owners import owner_of

AT_A_TIME = 32
"""Signals under way. A server keeps 100 events for the next task of a workflow, and then fails its tasks."""

A_SIGNAL = 30_000
"""Bytes of several messages in one signal. With `AT_A_TIME`, a task sends less than a message can have."""


type _Message = tuple[str, Any, list[str]]
"""Kind, content, and the ids of grants that the run learns of by it."""


class Outbox:
    """Messages by workflow run: one signal at a time, in order, with what has gathered meanwhile."""

    def __init__(
        self,
        key: str,
        landed: Callable[[str, Sequence[str], bool], None],
        state: dict[str, list[Any]] | None = None,
    ) -> None:
        """`landed(inbox, granted, there)`: the signal with these grants has arrived, or its run is gone."""
        self._key = key
        self._landed = landed
        self._messages: dict[str, deque[_Message]] = {
            inbox: deque((kind, content, granted) for kind, content, granted in kept)
            for inbox, kept in (state or {}).items()
        }
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def dump(self) -> dict[str, list[Any]]:
        """Unsent messages, for the next run."""
        return {inbox: list(kept) for inbox, kept in self._messages.items()}

    def size(self) -> int:
        """Bytes of `dump()`."""
        return len(json.dumps(self.dump()))

    @property
    def is_sending(self) -> bool:
        """Whether a signal was sent and has not arrived."""
        return bool(self._under_way)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be sent, and nothing is under way."""
        return not self._messages and not self._under_way

    def put(self, inbox: str, message: BrokerAnswer | Packed, granted: Sequence[str] = ()) -> None:
        """Add an answer or a notification. Without a workflow's run as receiver it is dropped."""
        if owner_of(inbox) is None:
            return
        answer = isinstance(message, BrokerAnswer)
        content = vars(message) if isinstance(message, BrokerAnswer) else message
        kept: deque[_Message] = self._messages.setdefault(inbox, deque())
        kept.append(("answer" if answer else "notification", content, list(granted)))

    def send(self) -> None:
        """Send a signal to each run that has received its last one. The longest waiting go first."""
        ready = [each for each in self._messages if each not in self._under_way]
        for inbox in ready[: AT_A_TIME - len(self._under_way)]:
            sending = self._deliver(inbox, *self._take(inbox))
            self._under_way[inbox] = asyncio.create_task(sending)

    def _take(self, inbox: str) -> tuple[News, list[str]]:
        """The next signal, and the grants in it: as much as fits, but at least one message."""
        kept, news, size = self._messages[inbox], News(self._key), 0
        granted: list[str] = []
        while kept and size < A_SIGNAL:
            kind, content, ids_granted = kept.popleft()
            size += len(json.dumps(content))
            if kind == "answer":
                news.answers.append(BrokerAnswer(**content))
            else:
                news.notifications.append(content)
            granted += ids_granted
        if not kept:
            del self._messages[inbox]
        return news, granted

    async def _deliver(self, inbox: str, news: News, granted: Sequence[str]) -> None:
        there = True
        try:
            await _addressee(inbox).signal(ids.NEWS, news)
        except FailureError as error:  # its run has closed, or takes no more signals
            there = False
            workflow.logger.debug("A signal could not be delivered: %s", error)
        del self._under_way[inbox]
        self._landed(inbox, granted, there)


def _addressee(inbox: str) -> workflow.ExternalWorkflowHandle[Any]:
    owner = owner_of(inbox)
    assert owner is not None
    return workflow.get_external_workflow_handle(owner[0], run_id=owner[1])
