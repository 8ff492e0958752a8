"""A broker's outgoing post: for each addressee one signal at a time, in order, with all that has gathered."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

from dibs.core.codec import encode
from dibs.model import Notification
from dibs.stores.temporal.broker.clock import BrokerClock
from dibs.stores.temporal.broker.desk import Desk
from dibs.stores.temporal.broker.parts import A_PART, Bundle
from dibs.stores.temporal.protocol import ids
from dibs.stores.temporal.protocol.owners import Owner, inbox_of, owner_of
from dibs.stores.temporal.protocol.wire import BrokerAnswer, News

_MAILBOX = re.compile("[!-~]{1,200}")
"""What a client of ours may call its mailbox."""

A_PORTION = 64
"""So many are at a time: of what arrives while a task runs a server keeps 100 for the next one, and then
fails the task, again and again."""

AT_ONCE = 1_000_000
"""So many bytes are under way, unless one bundle has more: all that a task sends is one message as well."""


class Post:
    """Bundles by inbox. `landed(inbox, bundle, there)` is told what became of each."""

    def __init__(
        self,
        key: str,
        landed: Callable[[str, Bundle, bool], None],
        state: dict[str, Any] | None = None,
    ) -> None:
        self._key = key
        self._landed = landed
        self._bundles = {inbox: _bundle(packed) for inbox, packed in (state or {}).items()}
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._load = 0
        """Of those, in bytes."""

    def dump(self) -> dict[str, Any]:
        """What was not yet sent."""
        return {inbox: asdict(bundle) for inbox, bundle in self._bundles.items()}

    def size(self) -> int:
        """Of that, in bytes."""
        return len(json.dumps(self.dump())) if self._bundles else 0

    def to(self, inbox: str) -> Bundle:
        """The bundle that goes next to an inbox, to be added to; one to nowhere is thrown away."""
        if not _can_be_reached(inbox):
            return Bundle()
        return self._bundles.setdefault(inbox, Bundle())

    @property
    def under_way(self) -> bool:
        """Something was sent and hasn't arrived."""
        return bool(self._under_way)

    @property
    def empty(self) -> bool:
        """There is nothing to send, and nothing under way."""
        return not self._bundles and not self._under_way

    def send(self) -> None:
        """Send a bundle to each addressee that has got its last, the oldest bundles first."""
        ready = [each for each in self._bundles if each not in self._under_way]
        busy = len(self._under_way)
        for inbox in ready[: max(A_PORTION - busy, 0)]:
            size = self._bundles[inbox].size
            if self._load and self._load + size > AT_ONCE:
                return  # it goes as soon as others have arrived
            bundle = self._take(inbox, size)
            self._load += (load := bundle.size if size > A_PART else size)
            self._under_way[inbox] = asyncio.create_task(self._deliver(inbox, bundle, load))

    def _take(self, inbox: str, size: int) -> Bundle:
        """All that goes to it, or what fits into one message: the rest comes before what is added to it."""
        bundle = self._bundles.pop(inbox)
        part, rest = bundle.split() if size > A_PART else (bundle, None)
        if rest is None:
            return bundle
        self._bundles[inbox] = rest
        return part

    async def _deliver(self, inbox: str, bundle: Bundle, load: int) -> None:
        news = News(self._key, bundle.notifications, bundle.answers)
        there = True
        try:
            await _addressee(inbox).signal(ids.NEWS, news)
        except FailureError as error:  # it has closed, or takes no more signals: it won't ever know
            there = False
            workflow.logger.debug("A push could not be delivered: %s", error)
        del self._under_way[inbox]
        self._load -= load
        self._landed(inbox, bundle, there)


def _addressee(inbox: str) -> workflow.ExternalWorkflowHandle[Any]:
    """A workflow's run, or a client's mailbox whatever its run."""
    owner = owner_of(inbox)
    if owner is None:
        return workflow.get_external_workflow_handle(ids.mailbox_id(inbox))
    return workflow.get_external_workflow_handle(owner[0], run_id=owner[1])


def _can_be_reached(inbox: str) -> bool:
    return owner_of(inbox) is not None or bool(_MAILBOX.fullmatch(inbox))


def _bundle(packed: dict[str, Any]) -> Bundle:
    answers = [BrokerAnswer(**answer) for answer in packed["answers"]]
    return Bundle(packed["notifications"], answers, packed["granted"])


class Telling:
    """What a broker tells of its own accord, and what it takes back where nobody is left to be told.

    It is between the desk, which says who is to be told, and the post, which says who has heard it.
    """

    def __init__(
        self,
        key: str,
        desk: Desk,
        clock: BrokerClock,
        changed: Callable[[], None],
        state: dict[str, Any] | None,
    ) -> None:
        self._desk = desk
        self._clock = clock
        self._changed = changed
        self._missed: dict[str, list[str]] = {}
        """Inboxes of workflows that have closed, and the grants that they never learnt of."""
        self.post = Post(key, self._landed, state)

    def answer(self, inbox: str, answer: BrokerAnswer, granted: Sequence[str]) -> None:
        """Tell a workflow what came of its call; of these grants it learns by that."""
        bundle = self.post.to(inbox)
        bundle.answers.append(answer)
        bundle.granted += granted

    def push(self, notifications: list[Notification]) -> None:
        """Tell what has changed to whom it concerns."""
        granted = self._desk.ids_granted(notifications)
        now, stamp = self._clock.read()
        for inbox, entry_ids in granted.items():
            if owner_of(inbox):
                notifications = self._desk.claimed(entry_ids, notifications, now, stamp)
                self.post.to(inbox).granted += entry_ids
        for notification in notifications:
            if notification.inbox and not _needless(notification):
                self.post.to(notification.inbox).notifications.append(encode(notification))

    # -- who has closed -----------------------------------------------------------------------------

    def _landed(self, inbox: str, bundle: Bundle, there: bool) -> None:
        """Nobody holds what was granted to a workflow that had closed by then.

        A mailbox that isn't there proves nothing: its client may ask without one.
        """
        if owner_of(inbox) and not there:
            self._missed.setdefault(inbox, []).extend(bundle.granted)
        self._changed()

    def closed(self, runs: Sequence[Owner], waiters: Sequence[Owner]) -> None:
        """What these runs hold ends with them, and these waiters wait no longer."""
        self.push(self._desk.closed(runs, *self._clock.read()))
        for waiter in waiters:
            self._missed.setdefault(inbox_of(*waiter), [])
        self._changed()

    def take_back(self) -> None:
        """Give up what closed workflows held: of all at once, as each costs a look at the whole book."""
        missed, self._missed = self._missed, {}
        if missed:
            self.push(self._desk.gone(missed, *self._clock.read()))


def _needless(notification: Notification) -> bool:
    """A workflow at the head need not look after the time: the broker does."""
    return notification.event == "head" and owner_of(notification.inbox) is not None
