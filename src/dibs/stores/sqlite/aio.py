"""An event loop's way to the file: in place while nobody else writes, else in a thread of its own."""

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dibs.errors import DibsError
from dibs.model import Command, Finding, Page, Reply, Wakeup
from dibs.stores.aio import submit_in_task
from dibs.stores.port import Deliver, Done, GiveUp, as_dibs
from dibs.stores.sqlite import examining, scanning, upkeep
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.poll import PACE, Watch, begin_to_listen, sender
from dibs.stores.sqlite.post import Post
from dibs.stores.sqlite.site import Site
from dibs.stores.sqlite.trouble import Busy
from dibs.stores.sqlite.worker import Job, Worker


class Mailbox:
    """Notifications for one event loop. It knows no connection, so that one can be dropped."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, post: Post | None, deliver: Deliver
    ) -> None:
        self.post = post
        self.inbox = "" if post is None else post.inbox
        self.take = deliver
        """Takes those that are for us, in the loop."""
        self._loop = loop
        if self.inbox and post is not None:
            loop.add_reader(post.socket, self._read)

    def close(self) -> None:
        """Stop listening."""
        if self.post is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self.post.socket)
            self.post.close()

    def _read(self) -> None:
        if self.post is not None:
            # One at a time: the loop comes back for more, and whom it wakes need not wait for them.
            arrived = self.post.receive(1)
            if arrived:
                self.take(arrived)

    def deliver(self, wakeups: Sequence[Wakeup], *, in_loop: bool = False) -> None:
        """See that each notification reaches its inbox, ours or another's. Any thread."""
        mine = self.inbox
        others = [wakeup for wakeup in wakeups if wakeup.inbox and wakeup.inbox != mine]
        if others and self.post is not None:
            self.post.send(others)
        if len(others) == len(wakeups):
            return
        own = [wakeup for wakeup in wakeups if wakeup.inbox == mine]
        if not own:
            return
        if in_loop:
            self.take(own)
        else:
            try:
                self._loop.call_soon_threadsafe(self.take, own)
            except RuntimeError:
                pass  # that loop is closed, and nobody waits in it any more


A_MOMENT = 0.00005
"""Seconds that an event loop waits in place for another writer."""

IN_PLACE = 64
"""Commands of a batch that is applied on the loop's own thread, at most."""


class AsyncSqliteConnection:
    """See `AsyncConnection`.

    A batch that is given up interrupts nothing: it is done or not done as a whole, and its answer is dropped.
    """

    parallel = 1

    def __init__(self, site: Site) -> None:
        self.inbox = ""
        self._site = site
        self._connection = Connection(site)
        self._worker = Worker(self._connection)
        self._mailbox: Mailbox | None = None
        self._watch: Watch | None = None
        self._polling: asyncio.Task[None] | None = None
        self._flying = 0
        self._tidying: threading.Thread | None = None
        self._last_rites = weakref.finalize(self, self._worker.stop_for_good)
        self._last_rites.atexit = False

    async def open(self) -> None:
        await self._in_thread(self._connection.connect)
        if self._mailbox is None:  # others' notifications are sent from here, too
            self._use(Mailbox(asyncio.get_running_loop(), sender(self._connection), _to_nobody))

    async def subscribe(self, deliver: Deliver) -> None:
        if self.inbox or self._polling is not None:
            return
        if self._mailbox is not None:
            self._mailbox.close()
        post, self._watch = begin_to_listen(self._connection)
        mailbox = Mailbox(asyncio.get_running_loop(), post, deliver)
        self._use(mailbox)
        self.inbox = mailbox.inbox
        if self._watch is not None:
            poll = _poll(weakref.ref(self), self._watch, deliver)
            self._polling = asyncio.get_running_loop().create_task(poll)
            self._polling._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed

    def _use(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._last_rites.detach()
        self._last_rites = weakref.finalize(self, partial(_let_go, self._worker, mailbox))
        self._last_rites.atexit = False
        self._worker.deliver = mailbox.deliver

    async def close(self) -> None:
        connection = self._connection
        if self._worker.is_running:  # it may still connect for somebody who was cancelled
            await self._in_thread(_nothing)
        if connection.ready:
            if upkeep.is_due_at_parting(connection):
                self._deliver(await self._in_thread(lambda: upkeep.run(connection), alone=False))
            await self._in_thread(connection.close)
        self._worker.stop()
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            mailbox.close()
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
        self.inbox, self._watch = "", None

    # -- commands -----------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        replies: Sequence[Reply] | DibsError | None
        try:
            replies = self._in_place(commands)
        except Exception as error:  # noqa: BLE001  # whatever it was, the callers are told
            replies = as_dibs(error)
        if replies is None:
            return submit_in_task(self._apply(commands), done)
        done(replies)
        return _nothing

    def _in_place(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        """Apply a batch now; None if somebody is in the way, or it would take too long here."""
        connection = self._connection
        if self._flying or not connection.ready or len(commands) > IN_PLACE:
            return None
        if not connection.lock.acquire(blocking=False):
            return None
        try:
            replies, wakeups = self._apply_soon(commands)
        except Busy:
            return None
        finally:
            connection.lock.release()
        if self._watch is not None:
            self._watch.note(commands, replies)
        if wakeups:
            self._deliver(wakeups)
        if connection.work >= upkeep.EVERY:
            self._tidy()
        return replies

    def _apply_soon(self, commands: Sequence[Command]) -> tuple[list[Reply], list[Wakeup]]:
        """Somebody who writes has mostly done so in less time than another thread would cost."""
        try:
            return self._connection.apply(commands)
        except Busy:
            time.sleep(A_MOMENT)
            return self._connection.apply(commands)

    async def _apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        replies: Sequence[Reply] = await self._fly(Job(commands))
        if self._watch is not None:
            self._watch.note(commands, replies)
        if upkeep.is_due(self._connection):
            self._tidy()
        return replies

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        look = partial(scanning.scan, self._connection, prefix, cursor, limit, self._worker.push)
        page: Page = await self._in_thread(look, alone=False)
        return page

    async def _in_thread(self, action: Callable[[], Any], *, alone: bool = True) -> Any:
        """Have something done that may wait; `alone`: under the connection's lock."""
        return await self._fly(Job(action, alone=alone))

    async def _fly(self, job: Job) -> Any:
        self._flying += 1
        try:
            self._worker.submit(job)
            return await job.future
        finally:
            self._flying -= 1

    def _tidy(self) -> None:
        """Upkeep in a thread and on a connection of its own: others go on beside it."""
        self._connection.work = 0
        mailbox = self._mailbox
        if mailbox is not None and (self._tidying is None or not self._tidying.is_alive()):
            self._tidying = threading.Thread(
                target=_tidy, args=(self._site, mailbox), name="dibs-upkeep", daemon=True
            )
            self._tidying.start()

    async def examine(self) -> Sequence[Finding]:
        look = partial(examining.examine, self._connection, pushes=self._watch is None)
        found: Sequence[Finding] = await self._in_thread(look, alone=False)
        return found

    # -- notifications ------------------------------------------------------------------------------

    def _deliver(self, wakeups: Sequence[Wakeup]) -> None:
        if self._mailbox is not None:
            self._mailbox.deliver(wakeups, in_loop=True)

    def after_fork(self) -> None:
        """The connection is seen to by `forks`; the loop's own files belong to the parent."""
        self._last_rites.detach()
        if self._mailbox is not None and self._mailbox.post is not None:
            self._mailbox.post.close_in_child()
        self._mailbox = self._watch = self._tidying = self._polling = None
        self.inbox = ""
        self._flying = 0
        self._worker = Worker(self._connection)


def _nothing() -> None:
    """What has to be done first has been done."""


def _to_nobody(_: object) -> None:
    """Nobody has subscribed."""


async def _poll(
    connection: "weakref.ref[AsyncSqliteConnection]", watch: Watch, deliver: Deliver
) -> None:
    """Without datagrams: look for changes of the file, for as long as the connection lives."""
    while True:
        await asyncio.sleep(PACE)
        ours = connection()
        if ours is None:
            return
        try:
            news = await ours._in_thread(watch.look)
        except DibsError as error:
            news = error
        del ours
        if news:
            deliver(news)


def _tidy(site: Site, mailbox: Mailbox) -> None:
    connection = Connection(site)
    try:
        mailbox.deliver(upkeep.run(connection))
    finally:
        with connection.lock:
            connection.close()


def _let_go(worker: Worker, mailbox: Mailbox) -> None:
    """A backend was dropped without `close`."""
    worker.stop_for_good()
    if mailbox.post is not None:
        mailbox.post.close()
