"""The mailbox of one client: a workflow that collects what brokers push, until the client takes it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from temporalio import workflow

from dibs.stores.temporal.broker.parts import outgrown, size_of
from dibs.stores.temporal.protocol import ids
from dibs.stores.temporal.protocol.wire import FORMAT, News, too_new


@dataclass
class MailboxInput:
    """What a mailbox's run begins with; nothing, at first."""

    upto: int = 0
    """The number of the newest."""
    news: list[News] = field(default_factory=list[News])
    format: int = FORMAT


@workflow.defn(name=ids.MAILBOX)
class DibsMailbox:
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
    ROOM = 1_000_000
    """Likewise of more bytes: a message of Temporal's has 2 MB at most."""

    @workflow.init
    def __init__(self, given: MailboxInput | None = None) -> None:
        given = given or MailboxInput()
        self._shelf = _Shelf(given.upto, given.news, self.KEPT, self.ROOM)
        self._heard = workflow.time()
        self._calls = 0
        self._taking = 0
        self._leaving = False

    @workflow.run
    async def run(self, given: MailboxInput | None = None) -> None:
        """Collect until nobody comes to take it."""
        newer = too_new("this mailbox", given.format, "its worker", FORMAT) if given else None
        if newer:  # This fails the task: it waits for a newer worker, or for its client to be gone.
            raise RuntimeError(newer)
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
        workflow.continue_as_new(MailboxInput(self._shelf.upto, self._shelf.since(0)))

    @workflow.signal(name=ids.NEWS)
    def collect(self, news: News) -> None:
        """A broker's push."""
        self._shelf.put(news)

    @workflow.update(name=ids.TAKE)
    async def take(self, after: int, seconds: float) -> dict[str, Any]:
        """Wait for something newer than number `after`, which says that what came before was received.

        Returns `{"upto": number of the newest, "news": [...]}`; no news at the end of `seconds`, or when
        the mailbox has to continue as new.
        """
        self._calls += 1
        self._taking += 1
        try:
            self._shelf.clear(after)
            await self._newer_than(after, min(seconds, self.LONGEST))
        finally:
            self._taking -= 1
            self._heard = workflow.time()
        return {"upto": self._shelf.upto, "news": self._shelf.since(after)}

    async def _newer_than(self, after: int, seconds: float) -> None:
        if seconds <= 0:
            return
        try:
            await workflow.wait_condition(
                lambda: self._leaving or bool(self._shelf.since(after)),
                timeout=seconds,
                timeout_summary="as long as its client waits",
            )
        except TimeoutError:
            pass

    def _outgrown(self) -> bool:
        return outgrown(self.EVENTS, self._calls, self.CALLS)


class _Shelf:
    """Numbered news. Where there is no room for the next the oldest go."""

    def __init__(self, upto: int, news: Sequence[News], most: int, room: int) -> None:
        self.upto = upto - len(news)
        """The number of the newest."""
        self._most, self._room = most, room
        self._news = deque[tuple[News, int]]()
        self._size = 0
        for each in news:
            self.put(each)

    def put(self, news: News) -> None:
        """The next one."""
        self.upto += 1
        size = size_of(asdict(news))
        self._news.append((news, size))
        self._size += size
        while len(self._news) > self._most or self._size > self._room:
            self._drop()

    def since(self, after: int) -> list[News]:
        """What is newer; a number that was never given is from a mailbox before this one."""
        oldest = self.upto - len(self._news)
        known = max(after - oldest, 0) if after <= self.upto else 0
        return [news for news, _ in islice(self._news, known, None)]

    def clear(self, upto: int) -> None:
        """What came before was received."""
        for _ in range(len(self._news) - len(self.since(upto))):
            self._drop()

    def _drop(self) -> None:
        self._size -= self._news.popleft()[1]
