"""What happens to leases, as one server knows it: the latest events, and who follows them.

Two sources: the commands that this server applies, and looks at the store, for what other servers and
programs do there. It is as new as the last look. Who holds a lease only the store can tell.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

from dibs.core.names import KINDS
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Notification, Page, Reply
from dibs.runtime.notifications import ForwardingReceiver, Receiver
from dibs.server.key_changes import KeyStates
from dibs.server.lock_events import EventLog, LockEvent

log = logging.getLogger("dibs.server")

type Scan = Callable[[bytes, bytes | None, int], Awaitable[Page]]
"""Read keys of the store: their prefix, the cursor, how many at most."""

NEWS_DELAY = 0.02
"""Seconds for which events gather before followers are woken."""


class Activity:
    """The events of one server.

    `applied` and `ObservingReceiver` report what passes through this server. While it is `polling`, it also
    reads the store: every second if anybody follows its events.
    """

    def __init__(self, now: Callable[[], float], scan: Scan) -> None:
        """`now` is a clock that only runs forwards, in seconds."""
        self.log = EventLog()
        self.keys = KeyStates(self._happened, now, time.time)
        self.poller = Poller(self.keys, now, scan)
        self._renewals = 0
        self._watched: Counter[bytes] = Counter()
        self._followers: set[asyncio.Event] = set()
        self._waking = False

    def applied(self, _: object, command: Command, reply: Reply) -> None:
        """Report a command that was applied, and its reply."""
        self.keys.applied(command, reply)

    def _happened(self, event: LockEvent) -> None:
        """Renewals are so many that they are only logged where somebody wants them."""
        if event.what == "renewed" and not (self._renewals or self.is_watched(event.key)):
            return
        self.log.add(event)
        if self._followers and not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_later(NEWS_DELAY, self._wake)

    def _wake(self) -> None:
        self._waking = False
        for news in self._followers:
            news.set()

    @contextmanager
    def following(
        self, news: asyncio.Event, key: bytes | None = None, *, renewals: bool = False
    ) -> Generator[None]:
        """Set `news` after each event, until the block ends. Its reader looks at a single key itself."""
        self._followers.add(news)
        self._renewals += renewals
        if key is None:
            self.poller.follow()
        else:
            self._watched[key] += 1
        try:
            yield
        finally:
            if key is None:
                self.poller.followers -= 1
            else:
                self._watched[key] -= 1
                if not self._watched[key]:
                    del self._watched[key]
            self._renewals -= renewals
            self._followers.discard(news)

    def is_watched(self, key: bytes) -> bool:
        """Whether anybody follows the events of this very key."""
        return key in self._watched

    @property
    def has_followers(self) -> bool:
        """Whether anybody follows all events, or those of a key."""
        return bool(self._followers)

    @asynccontextmanager
    async def polling(self) -> AsyncGenerator[None]:
        """Read the store again and again, until the block ends."""
        task = asyncio.create_task(self.poller.scan_on(), name="dibs activity")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class ObservingReceiver(ForwardingReceiver):
    """Reports the notifications of a runtime to the states of keys. Takes the place of its receiver."""

    def __init__(self, receiver: Receiver, keys: KeyStates) -> None:
        super().__init__(receiver)
        self._keys = keys

    def deliver(self, notification: Notification) -> None:
        self._keys.notified(notification)
        super().deliver(notification)


FOLLOWED = 1.0
"""Seconds from the beginning of one scan to that of the next, while anybody follows events."""

UNFOLLOWED = 15.0

PAUSE = 9
"""Each page is followed by a pause of so many times its duration: a tenth of a core at most."""

UNFOLLOWED_PAUSE = 49

PAGE = 200
"""Keys of a page: nothing else runs while it is decoded."""


class Poller:
    """Reads the store, for what others do there. A look that fails is logged and repeated."""

    def __init__(self, keys: KeyStates, now: Callable[[], float], scan: Scan) -> None:
        self._keys = keys
        self._now = now
        self._scan = scan
        self._hurry = asyncio.Event()
        self.followers = 0
        """How many follow all events."""

    def follow(self) -> None:
        """Read the store at once and often, for one more follower."""
        self.followers += 1
        self._hurry.set()

    async def scan_on(self) -> None:
        """Scan all keys, again and again."""
        while True:
            begun = self._now()
            self._hurry.clear()
            with _logged():
                try:
                    await self._scan_all(begun)
                except DibsError as error:
                    if not isinstance(error, BackendUnavailable):  # it lists no keys, as by an ACL
                        self._keys.drop_expired()
                    raise
            until = begun + (FOLLOWED if self.followers else UNFOLLOWED)
            await self._rest(max(until - self._now(), 0.05))

    async def _rest(self, seconds: float) -> None:
        """Pause until the time is over, or somebody begins to follow."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def _scan_all(self, begun: float) -> None:
        scan = self._keys.begin_scan()
        for kind in KINDS:
            cursor: bytes | None = None
            while True:
                asked = self._now()
                page = await self._scan(kind.encode() + b":", cursor, PAGE)
                for status in page.items:
                    self._keys.observe(status, asked, scan=scan)
                cursor = page.cursor
                if cursor is None:
                    break
                pause = PAUSE if self.followers else UNFOLLOWED_PAUSE
                await asyncio.sleep(pause * (self._now() - asked))
        self._keys.end_scan(scan, begun)


@contextmanager
def _logged() -> Generator[None]:
    """Log why a look failed; until the next one nobody sees what others do."""
    try:
        yield
    except DibsError as error:
        log.warning("the store can't be read, so what others do there is not seen: %s", error)
    except Exception:  # whatever it was, the next look may find all well
        log.exception("a look at the store failed")
