"""The backend of a thread: everything is done in the caller's own thread, and nothing suspends."""

import time
from collections.abc import Sequence

from dibs.model import Command, Finding, Page, Reply, Wakeup
from dibs.stores.bell import Bell
from dibs.stores.sqlite import examining, scanning, upkeep
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.patience import always, persist
from dibs.stores.sqlite.poll import PACE, Watch, begin_to_listen, sender
from dibs.stores.sqlite.post import Post
from dibs.stores.sqlite.site import Site
from dibs.stores.sqlite.trouble import Busy


class BlockingBackend:
    """A connection for one thread at a time; its coroutines end without ever suspending.

    A caller that is interrupted (Ctrl-C) leaves no transaction behind: at the next use, or by `close`,
    it is rolled back.
    """

    def __init__(self, site: Site) -> None:
        self.inbox = ""
        self._site = site
        self._connection = Connection(site)
        self._post: Post | None = None
        self._watch: Watch | None = None
        self._bell: Bell | None = None
        self._arrived: list[Wakeup] = []

    async def open(self, *, listen: bool = True) -> None:
        persist(self._connection, self._connection.connect, always)
        if listen and self._bell is None:
            self._bell = Bell()
            self._post, self._watch = begin_to_listen(self._connection)
            self.inbox = self._post.inbox if self._post else ""

    async def close(self) -> None:
        connection = self._connection
        connection.unlock_after_interrupt()
        if connection.ready and upkeep.is_due_at_parting(connection):
            self._deliver(upkeep.run(connection))
        with connection.lock:
            connection.close()
        self._hang_up()

    def _hang_up(self) -> None:
        post, self._post = self._post, None
        bell, self._bell = self._bell, None
        if post is not None:
            post.close()
        if bell is not None:
            bell.close()

    # -- commands -----------------------------------------------------------------------------------

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        connection = self._connection
        if not connection.ready or not connection.lock.acquire(blocking=False):
            return None
        try:
            replies, wakeups = connection.apply(commands)
        except Busy:
            return None
        finally:
            connection.lock.release()
        self._after(commands, replies, wakeups)
        return replies

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        connection = self._connection
        replies, wakeups = persist(connection, lambda: connection.apply(commands), always)
        self._after(commands, replies, wakeups)
        return replies

    def _after(
        self, commands: Sequence[Command], replies: list[Reply], wakeups: list[Wakeup]
    ) -> None:
        if self._watch is not None:
            self._watch.note(commands, replies)
        if wakeups:
            self._deliver(wakeups)
        if upkeep.is_due(self._connection):
            self._deliver(upkeep.run(self._connection))

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return scanning.scan(self._connection, prefix, cursor, limit, self._deliver)

    async def examine(self) -> Sequence[Finding]:
        """What to know about the file."""
        post = self._post or sender(self._connection)
        return examining.examine(self._connection, pushes=post is not None)

    # -- wakeups ------------------------------------------------------------------------------------

    def _deliver(self, wakeups: Sequence[Wakeup]) -> None:
        if self._bell is not None:
            self._arrived += [wakeup for wakeup in wakeups if wakeup.inbox == self.inbox]
        others = [wakeup for wakeup in wakeups if wakeup.inbox not in (self.inbox, "")]
        if others and self._post is None and self._bell is None:
            self._post = sender(self._connection)
        if others and self._post is not None:
            self._post.send(others)

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            arrived, self._arrived = self._arrived, []
            if self._post is not None:
                arrived += self._post.receive()
            elif self._watch is not None:
                arrived += self._look(self._watch)
            left = None if end is None else end - time.monotonic()
            if arrived or self._bell is None or (left is not None and left <= 0):
                return arrived
            if self._rest(self._bell, left):
                return ()

    def _look(self, watch: Watch) -> Sequence[Wakeup]:
        return persist(self._connection, watch.look, always)

    def _rest(self, bell: Bell, left: float | None) -> bool:
        """Wait for a push or for the bell; tell whether the bell has rung."""
        if self._post is not None:
            return bell.wait(left, self._post.socket)
        return bell.wait(PACE if left is None else min(left, PACE))

    def nudge(self) -> None:
        bell = self._bell
        if bell is not None:
            bell.ring()

    def after_fork(self) -> None:
        """The connection is seen to by `forks`."""
        if self._post is not None:
            self._post.close_in_child()
            self._post = None
        self._hang_up()
        self.inbox = ""
        self._watch = None
        self._arrived = []
