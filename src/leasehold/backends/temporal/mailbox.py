"""The mailbox of one client: a workflow that collects what brokers push, until the client takes it."""

from dataclasses import dataclass, field
from typing import Any

from temporalio import workflow

from leasehold.backends.temporal import ids
from leasehold.backends.temporal.broker_growth import outgrown
from leasehold.backends.temporal.wire import FORMAT, News


@dataclass
class MailboxInput:
    """What a mailbox's run begins with; nothing, at first."""

    upto: int = 0
    """The number of the newest."""
    news: list[News] = field(default_factory=list[News])
    format: int = FORMAT


@workflow.defn(name=ids.MAILBOX)
class LeaseholdMailbox:
    """Keeps the newest of what was pushed; `take` waits for more. Ends when nobody has called for long."""

    EVENTS = 4_000
    """A history longer than this is left behind."""
    CALLS = 1_500
    """A server takes 2,000 updates of one run."""
    LINGER = 120.0
    """It ends so many seconds after the last call."""
    LONGEST = 60.0
    """No call waits longer."""
    KEPT = 1_000
    """Pushes are hints: of more than these the oldest are dropped."""

    @workflow.init
    def __init__(self, given: MailboxInput | None = None) -> None:
        given = given or MailboxInput()
        self._upto = given.upto
        self._news = list(given.news)
        self._heard = workflow.time()
        self._calls = 0
        self._taking = 0
        self._leaving = False

    @workflow.run
    async def run(self, given: MailboxInput | None = None) -> None:
        """Collect until nobody comes to take it."""
        while not self._leaving:
            left = self._heard + self.LINGER - workflow.time()
            if left <= 0 and not self._taking:
                return
            try:
                await workflow.wait_condition(
                    self._outgrown,
                    timeout=left if left > 0 else self.LINGER,
                    timeout_summary="until its client must be gone",
                )
                self._leaving = True
            except TimeoutError:
                pass
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(MailboxInput(self._upto, self._news))

    @workflow.signal(name=ids.NEWS)
    def collect(self, news: News) -> None:
        """A broker's push."""
        self._upto += 1
        self._news = [*self._news, news][-self.KEPT :]

    @workflow.update(name=ids.TAKE)
    async def take(self, after: int, seconds: float) -> dict[str, Any]:
        """Wait for something newer than number `after`, which says that what came before was received.

        Returns `{"upto": number of the newest, "news": [...]}`; no news at the end of `seconds`, or when
        the mailbox has to continue as new.
        """
        self._calls += 1
        self._taking += 1
        try:
            self._news = self._since(after)
            await self._newer_than(after, min(seconds, self.LONGEST))
        finally:
            self._taking -= 1
            self._heard = workflow.time()
        return {"upto": self._upto, "news": self._since(after)}

    def _since(self, after: int) -> list[News]:
        """What is newer; a number that was never given is from a mailbox before this one."""
        oldest = self._upto - len(self._news)
        return self._news[max(after - oldest, 0) :] if after <= self._upto else self._news

    async def _newer_than(self, after: int, seconds: float) -> None:
        if seconds <= 0:
            return
        try:
            await workflow.wait_condition(
                lambda: self._leaving or bool(self._since(after)),
                timeout=seconds,
                timeout_summary="as long as its client waits",
            )
        except TimeoutError:
            pass

    def _outgrown(self) -> bool:
        return outgrown(self.EVENTS, self._calls, self.CALLS)
