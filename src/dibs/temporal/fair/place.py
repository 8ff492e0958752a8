"""A workflow's place in a broker's queue: asked for once, and told of its turn without asking again.

A waiter's history doesn't grow while it waits, but for reminders: it asks anew after 60 s, 11 min and
71 min, and then once an hour, in case the broker was ended by hand and everybody's place with it. Each of
them is 14 events: 28 in the first hour, and 14 in each later one.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, repeat
from math import inf

from temporalio import workflow

from dibs.core.timing import BURIAL
from dibs.model import Acquire, Inspect, Release, Reply, Status, Wakeup
from dibs.temporal.fair.bell import Bell
from dibs.temporal.fair.delivery import Broker
from dibs.temporal.fair.lease import BrokeredLease
from dibs.temporal.fair.line import Calling, Line
from dibs.temporal.permits.ending import to_its_end

REMINDERS = (60.0, 600.0, 3600.0)
"""It asks again after so many seconds, then so many more, and then every so often as the last."""
ANSWERED = 5.0
"""So long a broker may take for its first answer, however short the wait: it may have to be started."""
SERVED = 300.0
"""One that has not answered for so long is served by nobody, though the wait has no end."""
LAST_WORDS = 5.0
"""Whoever gives up may wait so long to be told who was in the way."""


class Place:
    """One acquire, from its question until it is granted, refused or given up."""

    def __init__(self, line: Line, broker: Broker, acquire: Acquire, *, fast: bool) -> None:
        self.lease = BrokeredLease(acquire.id, acquire.ttl)
        self.bell = Bell()
        """Rung by news of it; whoever keeps the lease takes it over with its timer."""
        self.heard = False
        """The broker has answered."""
        self._line = line
        self._broker = broker
        self._acquire = replace(acquire, inbox=line.inbox)
        self._fast = fast
        self._calling: Calling | None = None
        self._left = False

    @property
    def settled(self) -> bool:
        """There is no more to wait for."""
        return self.lease.granted or self.lease.refusal is not None or self.trouble is not None

    @property
    def trouble(self) -> Exception | None:
        """What kept the question from its broker; once that was heard, a reminder's doesn't matter."""
        return None if self.heard or self._calling is None else self._calling.trouble

    @property
    def has_started_it(self) -> bool:
        """No broker was there, so its queue is ours."""
        return self._calling is not None and self._calling.has_started

    async def settle(self, until: float | None) -> None:
        """Wait for what comes of it, until then at the latest; whoever is cancelled meanwhile has left."""
        self._line.listen(self.lease.mark, self._pushed)
        try:
            await self._be_served(until)
        except (Exception, asyncio.CancelledError):
            self._line.refuse_if_put_away()
            await to_its_end(self.leave())
            raise

    async def _be_served(self, until: float | None) -> None:
        began = workflow.time()
        reminders = _reminders(began)
        self._ask()
        again = next(reminders)
        while not self.settled:
            now = workflow.time()
            end = self._end(began, until)
            if now >= end:
                return
            if now >= again:
                self._remind()
                again = next(reminders)
            await self.bell.wait(min(again, end), f"waits for {self._broker.named}")

    def _end(self, began: float, until: float | None) -> float:
        """When to give up, as things stand."""
        if self.heard:
            return inf if until is None else until
        return began + SERVED if until is None else max(until, began + ANSWERED)

    def _ask(self) -> None:
        self._calling = self._line.send(
            Calling(
                self._broker,
                [self._acquire],
                self._answer,
                self.bell,
                wanted=lambda: not self._left,
                starts=True,
                fast=self._fast,
            )
        )

    def _remind(self) -> None:
        """The same question once more: it keeps the place, or takes one if that is gone."""
        if not self.heard:
            workflow.logger.warning(
                "the broker of %s has not answered: does a worker serve the task queue %s? "
                "`dibs temporal worker` does",
                self._broker.named,
                self._broker.queue,
            )
        if self._calling is None or self._calling.over:
            self._ask()

    def _answer(self, replies: Sequence[Reply], sent: float) -> None:
        self.heard = True
        self.lease.hear(replies[0], sent)

    def _pushed(self, push: Wakeup) -> None:
        self.lease.hear_push(push, workflow.time())
        self.bell.ring()

    async def leave(self) -> None:
        """Give it up, also what was granted meanwhile.

        The question is on its way, or never will be, before the release is: it can't come after it.
        """
        await self._leave(Calling(self._broker, [self._release]))

    async def leave_and_ask(self) -> Status | None:
        """Give it up, and tell who held and who waited; None if there is no answer."""
        found: list[Status] = []

        def take(replies: Sequence[Reply], sent: float) -> None:
            found.extend(reply for reply in replies if isinstance(reply, Status))

        last = Calling(self._broker, [Inspect(self._broker.key), self._release], take)
        await self._leave(last)
        if self.heard:
            until = workflow.time() + LAST_WORDS
            await last.wait_settled(until, f"asks who holds {self._broker.named}")
            last.bell.close()
        return found[0] if found else None

    async def _leave(self, last: Calling) -> None:
        self._left = True
        if self._calling is not None:
            await self._calling.wait_over()
        await self._line.send(last).wait_over()
        self.forget()

    def forget(self) -> None:
        """Listen no more: it is over at the broker as well."""
        self.bell.close()
        self._line.leave(self.lease.mark)

    @property
    def _release(self) -> Release:
        return Release(self._broker.key, self._acquire.id, bury=BURIAL)


def _reminders(start: float) -> Iterator[float]:
    """When to ask again."""
    reminders = accumulate(chain(REMINDERS, repeat(REMINDERS[-1])), initial=start)
    next(reminders)
    return reminders
