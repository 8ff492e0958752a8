"""Events of leases at one server, and their followers.

They have two sources: commands that this server applies, and scans of the store, for changes by other servers
and programs. Those events come with the next scan.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

from dibs.core.names import KINDS
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Notification, Page
from dibs.runtime.notifications import ForwardingReceiver, Receiver
from dibs.server.key_changes import KeyStates
from dibs.server.lock_events import EventLog, LockEvent

log: logging.Logger = logging.getLogger("dibs.server")

type Scan = Callable[[bytes, bytes | None, int], Awaitable[Page]]
"""Read keys of the store: their prefix, the cursor, how many at most."""

NEWS_DELAY = 0.02
"""Seconds for which events gather before followers are woken."""

FOLLOWED = 1.0
"""Seconds from the start of one scan to the next, while a client follows all events."""

UNFOLLOWED = 15.0
"""The same without such followers."""

PAUSE = 9
"""The scan pauses for so many times as long as a page took: it uses at most a tenth of a core."""

UNFOLLOWED_PAUSE = 49

PAGE = 200
"""Keys per page: decoding a page blocks the loop."""


class Activity:
    """The events of one server.

    `keys.applied` and `ObservingReceiver` report what passes through this server. While it is `polling`,
    it also scans the store: every second if a client follows all events.
    """

    def __init__(self, now: Callable[[], float], scan: Scan) -> None:
        """`now` is a clock that only runs forwards, in seconds."""
        self.log: EventLog = EventLog()
        self.keys: KeyStates = KeyStates(self._happened, now, time.time)
        self.observers: list[Callable[[LockEvent], None]] = []
        """Called with each event."""
        self._now = now
        self._scan = scan
        self._followers: set[asyncio.Event] = set()
        self._followed: Counter[bytes | None] = Counter()
        """How many follow each key; None: all keys."""
        self._renewals = 0
        """How many of them want renewals of all keys."""
        self._last_without = -1
        """The number of the last event before the latest renewal that was not logged; -1: none yet."""
        self._waking = False
        self._hurry = asyncio.Event()

    def _happened(self, event: LockEvent) -> None:
        """Log an event. There are many renewals, so they are only logged if a client wants them."""
        for observer in self.observers:
            observer(event)
        if event.what == "renewed" and not (self._renewals or event.key in self._followed):
            self._last_without = self.log.last
            return
        self.log.add(event)
        if self._followers and not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_later(NEWS_DELAY, self._wake)

    def has_after(self, number: int, *, renewals: bool) -> bool:
        """Whether the log has all events after this number, and all renewals since if they are wanted."""
        return self.log.has_after(number) and not (renewals and number <= self._last_without)

    def _wake(self) -> None:
        self._waking = False
        for news in self._followers:
            news.set()

    @contextmanager
    def following(
        self, news: asyncio.Event, key: bytes | None = None, *, renewals: bool = False
    ) -> Generator[None]:
        """Set `news` after each event, until the block ends.

        For one that follows all events the store is scanned often. One that follows a `key` looks at it.
        """
        self._followers.add(news)
        self._renewals += renewals
        self._followed[key] += 1
        if key is None:
            self._hurry.set()
        try:
            yield
        finally:
            self._followed[key] -= 1
            if not self._followed[key]:
                del self._followed[key]
            self._renewals -= renewals
            self._followers.discard(news)

    @asynccontextmanager
    async def polling(self) -> AsyncGenerator[None]:
        """Scan the store again and again, until the block ends."""
        task = asyncio.create_task(self._poll(), name="dibs activity")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _poll(self) -> None:
        """Scan. A scan that fails is logged, and begun again."""
        while True:
            begun = self._now()
            self._hurry.clear()
            try:
                await self._scan_all(begun)
            except DibsError as error:
                if not isinstance(error, BackendUnavailable):  # an ACL forbids to list keys
                    self.keys.drop_expired()
                log.warning(
                    "cannot read the store, so events of other servers are missing: %s", error
                )
            except Exception:  # the next scan may succeed
                log.exception("a scan of the store failed")
            until = begun + (FOLLOWED if self._followed[None] else UNFOLLOWED)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(until - self._now(), 0.05)):
                    await self._hurry.wait()

    async def _scan_all(self, begun: float) -> None:
        scan = self.keys.begin_scan()
        for kind in KINDS:
            cursor: bytes | None = None
            while True:
                asked = self._now()
                page = await self._scan(kind.encode() + b":", cursor, PAGE)
                for status in page.items:
                    self.keys.observe(status, asked, scan=scan)
                cursor = page.cursor
                if cursor is None:
                    break
                pause = PAUSE if self._followed[None] else UNFOLLOWED_PAUSE
                await asyncio.sleep(pause * (self._now() - asked))
        self.keys.end_scan(scan, begun)


class ObservingReceiver(ForwardingReceiver):
    """Reports the notifications of a runtime to the states of keys. Takes the place of its receiver."""

    def __init__(self, receiver: Receiver, keys: KeyStates) -> None:
        super().__init__(receiver)
        self._keys = keys

    def deliver(self, notification: Notification) -> None:
        self._keys.notified(notification)
        super().deliver(notification)
