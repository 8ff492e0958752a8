"""Looks at the store, for what others do there: other servers, and programs that use it themselves."""

import asyncio
import logging
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dibs.core.names import KINDS
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Inspect, Status
from dibs.runtime.port import TimedReply
from dibs.server.observatory.picture import Picture

if TYPE_CHECKING:
    from dibs.server.placing.runtime import PlacedRuntime

log = logging.getLogger("dibs.server")

WATCHED = 1.0
"""Seconds from the beginning of one walk to that of the next, while somebody watches."""

UNWATCHED = 15.0

SHARE = 9
"""After each page there is a pause, so many times as long as that took: a tenth of a core at most."""

SHARE_UNWATCHED = 49

PAGE = 200
"""Keys that are read at a time: while they are, everybody else waits."""

LOOKS = 16
"""Keys that are looked at closely at a time."""

CLOSELY = 512
"""So many single keys are looked at, each second."""


class Scanner:
    """Keeps a picture up to date."""

    def __init__(self, runtime: "PlacedRuntime", picture: Picture) -> None:
        self._runtime = runtime
        self._picture = picture
        self._hurry = asyncio.Event()
        self._watching = 0
        self._closely: Counter[bytes] = Counter()

    # -- who watches --------------------------------------------------------------------------------

    def watch(self, key: bytes | None) -> None:
        """Somebody watches: one key, or all that there is."""
        if key is None:
            self._watching += 1
        else:
            self._closely[key] += 1
        self._hurry.set()

    def unwatch(self, key: bytes | None) -> None:
        """No more."""
        if key is None:
            self._watching -= 1
        else:
            self._closely[key] -= 1
            if not self._closely[key]:
                del self._closely[key]

    def is_close(self, key: bytes) -> bool:
        """Whether somebody watches this very key."""
        return key in self._closely

    @property
    def is_watched(self) -> bool:
        """Whether anybody is there."""
        return bool(self._watching or self._closely)

    # -- looking ------------------------------------------------------------------------------------

    async def walk_on(self) -> None:
        """Walk through the store, again and again."""
        while True:
            begun = self._runtime.now()
            self._hurry.clear()
            with _logged():
                try:
                    await self._walk(begun)
                except DibsError as error:
                    if not isinstance(error, BackendUnavailable):  # it lists no keys, as by an ACL
                        self._picture.lapse()
                    raise
            until = begun + (WATCHED if self._watching else UNWATCHED)
            await self._rest(max(until - self._runtime.now(), 0.05))

    async def _rest(self, seconds: float) -> None:
        """Pause; the first who watches ends it."""
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _walk(self, begun: float) -> None:
        walk = self._picture.begin_walk()
        for kind in KINDS:
            cursor: bytes | None = None
            while True:
                asked = self._runtime.now()
                page = await self._runtime.connection.scan(kind.encode() + b":", cursor, PAGE)
                for status in page.items:
                    self._picture.looked(status, asked, walk=walk)
                cursor = page.cursor
                if cursor is None:
                    break
                share = SHARE if self.is_watched else SHARE_UNWATCHED
                await asyncio.sleep(share * (self._runtime.now() - asked))
        self._picture.walked(walk, begun)

    async def look_closely(self) -> None:
        """Look at the keys that somebody watches, each second."""
        while True:
            keys = list(self._closely)[:CLOSELY]
            began = self._runtime.now()
            if keys:
                with _logged():
                    for at in range(0, len(keys), LOOKS):
                        await self._look(keys[at : at + LOOKS])
            took = self._runtime.now() - began
            await asyncio.sleep(max(WATCHED - took, SHARE * took if keys else 0.0))

    async def _look(self, keys: list[bytes]) -> None:
        asked = self._runtime.now()
        told = await self._runtime.call_all([Inspect(key) for key in keys])
        for each in told:
            if isinstance(each, TimedReply) and isinstance(each.reply, Status):
                self._picture.looked(each.reply, asked)


@contextmanager
def _logged() -> Generator[None]:
    """A look that fails is tried again; meanwhile nobody sees what others do."""
    try:
        yield
    except DibsError as error:
        log.warning("the store can't be read, so what others do there is not seen: %s", error)
    except Exception:  # whatever it was, the next look may find all well
        log.exception("a look at the store failed")
