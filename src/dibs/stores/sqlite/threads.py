"""Threads' way to the file: everything is done in the caller's own thread."""

import time
from collections.abc import Callable, Sequence

from dibs.model import Command, Finding, Page, Reply, Wakeup
from dibs.stores.bell import Bell
from dibs.stores.sqlite import examining, scanning, upkeep
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.patience import always, persist
from dibs.stores.sqlite.poll import PACE, Watch, begin_to_listen, sender
from dibs.stores.sqlite.post import Post
from dibs.stores.sqlite.site import Site
from dibs.stores.sqlite.trouble import Busy, locked_out


class BlockingSqliteConnection:
    """See `BlockingConnection`.

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

    def open(self, timeout: float) -> None:
        self._persist(self._connection.connect, timeout)

    def close(self) -> None:
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

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        connection = self._connection
        replies, wakeups = self._persist(lambda: connection.apply(commands), timeout)
        self._after(commands, replies, wakeups)
        return replies

    def _persist[R](self, action: Callable[[], R], timeout: float) -> R:
        """Do something again and again while the file is busy, for so many seconds at most."""
        end = time.monotonic() + timeout
        try:
            return persist(self._connection, action, lambda: time.monotonic() < end)
        except Busy:
            raise locked_out(self._site.path, timeout) from None

    def _after(
        self, commands: Sequence[Command], replies: list[Reply], wakeups: list[Wakeup]
    ) -> None:
        if self._watch is not None:
            self._watch.note(commands, replies)
        if wakeups:
            self._deliver(wakeups)
        if upkeep.is_due(self._connection):
            self._deliver(upkeep.run(self._connection))

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return scanning.scan(self._connection, prefix, cursor, limit, self._deliver)

    def examine(self) -> Sequence[Finding]:
        post = self._post or sender(self._connection)
        return examining.examine(self._connection, pushes=post is not None)

    # -- notifications ------------------------------------------------------------------------------------

    def _deliver(self, wakeups: Sequence[Wakeup]) -> None:
        if self._bell is not None:
            self._arrived += [wakeup for wakeup in wakeups if wakeup.inbox == self.inbox]
        others = [wakeup for wakeup in wakeups if wakeup.inbox not in (self.inbox, "")]
        if others and self._post is None and self._bell is None:
            self._post = sender(self._connection)
        if others and self._post is not None:
            self._post.send(others)

    def subscribe(self, timeout: float) -> None:
        if self._bell is None:
            self._bell = Bell()
            self._post, self._watch = begin_to_listen(self._connection)
            self.inbox = self._post.inbox if self._post else ""

    def notifications(self, timeout: float | None) -> Sequence[Wakeup]:
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

    def wake(self) -> None:
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
