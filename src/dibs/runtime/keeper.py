"""The keeper: one daemon thread per store that renews leases, abandons ids and listens for threads.

It has a connection of its own, so neither a blocked event loop nor an exhausted pool costs a lease.
An error on its way is *unknown*, never *lost*: it tries again until the lease's own deadline.
"""

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from math import frexp, inf
from queue import Empty, SimpleQueue
from typing import NamedTuple
from weakref import WeakSet

from dibs.clock import Clock, SystemClock, alarms_of
from dibs.core.names import fingerprint
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Failed, Notification, Release, Reply
from dibs.process import Gate, on_fork
from dibs.runtime.calls import Outcome, apply_in_halves
from dibs.runtime.notifications import NotificationRouter
from dibs.runtime.port import TimedReply, Watched
from dibs.runtime.scheduler import RenewalScheduler, ThreadTimers, timers_for
from dibs.stores.port import MAX_BATCH, BlockingConnection, Store, step, time_limit

log: logging.Logger = logging.getLogger("dibs")

DRAIN = 1.0
"""How long closing and exiting wait for what is still to be given up, in seconds."""

NO_TTL = 1e9
"""Sort key of commands without a ttl, in seconds: after all others."""

MAX_PAUSE = 1.0
"""The longest wait between two tries to reach a store, in seconds."""


_SYSTEM = SystemClock()


class _Abandoned(NamedTuple):
    release: Release
    tries: int = 0
    retain_until: float | None = None

    def command(self, now: float) -> Release:
        """The Release to send now, with what is left of its `retain`."""
        if self.retain_until is None:
            return self.release
        return replace(self.release, retain=max(self.retain_until - now, 0.0))


type _Chore = Watched | _Abandoned | Gate


class StoreKeeper:
    """Renews, abandons and listens in the background, for all clients of one store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        connect_timeout: float,
        call_timeout: float,
    ) -> None:
        self.notifications: NotificationRouter = NotificationRouter(self._revoked)
        self.store: Store = store
        """Where the leases are that it keeps."""
        self.client_closed: bool = False
        """The client was closed. The thread ends when it has no work left."""
        self._connect_timeout = connect_timeout
        self._call_timeout = call_timeout
        self._clock = clock
        self._timers = timers_for(clock)
        self._stepped = alarms_of(clock) is not None
        self._reset()
        on_fork(self)
        _keepers.add(self)

    def _reset(self) -> None:
        self._chores: deque[_Chore] = deque()
        self._scheduler = RenewalScheduler(self._timers, self._look)
        self.watch: Callable[[Watched, float, float], None] = self._scheduler.add
        self.unwatch: Callable[[Watched], None] = self._scheduler.discard
        self._poked: SimpleQueue[None] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: BlockingConnection | None = None
        self._closing = False
        self._pause = 0.0
        self._ends: Mapping[int, float] = {}
        """The earliest deadline by magnitude of the ttl."""
        self._seek_at = -inf
        """When to find them anew."""
        self._complained = False
        self._responded: Gate | None = None
        """Opened by the keeper thread to show that it does not hang."""

    # -- what any thread may ask of it --------------------------------------------------------------

    def leases(self) -> Sequence[Watched]:
        """All leases that it looks after."""
        return self._scheduler.leases()

    def held(self, key: bytes) -> frozenset[str]:
        """The fingerprints of this client's leases on a key."""
        return frozenset(fingerprint(ls._id) for ls in self.leases() if ls.key == key)

    def prepare(self) -> None:
        """See `runtime.port.Keeper`."""
        has_ended = self._thread is None and not threading.main_thread().is_alive()
        try:
            if isinstance(self._timers, ThreadTimers):
                self._timers.start()
            if has_ended:  # some versions of Python start no threads any more
                self._start()
        except RuntimeError as error:
            step = "check the limit of threads of this process and machine"
            if has_ended:
                step = "join your threads before the main thread ends"
            raise DibsError(
                f"nothing was acquired, because the thread that renews leases did not start ({error}): {step}"
            ) from error

    def abandon(
        self, key: bytes, lease_id: str, tombstone: float, retain_until: float | None = None
    ) -> None:
        """See `runtime.port.Keeper`."""
        self._post(_Abandoned(Release(key, lease_id, tombstone=tombstone), 0, retain_until))

    @property
    def inbox(self) -> str:
        """The address for threads' notifications; empty while nobody listens."""
        connection = self._connection
        return connection.inbox if connection is not None else ""

    def listen(self, timeout: float) -> None:
        """Begin to listen for threads that wait, if that hasn't been done."""
        self.client_closed = False
        if self._connection is None:
            self.flush(timeout)

    def new_router(self) -> NotificationRouter:
        """A router for an event loop, which listens for itself."""
        return NotificationRouter(self._revoked)

    def flush(self, timeout: float) -> bool:
        """Wait until all that was asked for so far has been tried."""
        done = Gate()
        self._post(done)
        return done.wait(timeout)

    def close(self) -> None:
        """Give up every lease that is still held, wait a little for that, and end."""
        self.client_closed = True
        for lease in self._scheduler.leases():
            lease._lose("closed")
        if self._chores:
            try:
                self._start()
            except RuntimeError:  # the interpreter is about to end, and starts no threads any more
                self._work_here()
        thread = self._thread
        if thread is not None and self._is_responsive():
            self._closing = True
            self._wake()
            if thread is not threading.current_thread():
                thread.join(DRAIN)
            if self._thread is thread:
                self._thread = None
            self._closing = False

    def _is_responsive(self) -> bool:
        """Whether the keeper thread answers. If not, it hangs at the store, and is left alone."""
        if self._responded is not None and not self._responded.wait(0):
            return False  # as it did before: once is enough
        self._responded = Gate()
        self._post(self._responded)
        return self._responded.wait(DRAIN)

    def after_fork(self) -> None:
        """The parent's leases, chores and connection are not the child's."""
        connection, leases = self._connection, self._scheduler.leases()
        self.notifications = NotificationRouter(self._revoked)
        self._reset()
        if connection is not None:
            connection.after_fork()
        for lease in leases:
            lease._lose("closed", "the process forked, and a child holds nothing of its parent's")

    # -- the timers' thread -------------------------------------------------------------------------

    def _look(self, leases: Sequence[Watched]) -> None:
        """The time has come to look at these."""
        now, due = self._clock.now(), []
        for lease in leases:
            try:
                care = lease._check(now)
            except Exception:
                log.exception("looking at a lease failed")
                continue
            if care.again_at is not None:
                self._scheduler.add(lease, care.again_at, max(care.again_at - now, 0.0))
            if care.renew:
                due.append(lease)
        if due:
            self._chores.extend(due)
            self._wake()
            if self._stepped:
                self.flush(10 * DRAIN)

    def _revoked(self, notification: Notification) -> None:
        """A notification says that one of our leases was revoked: the store has the last word."""
        for lease in self._scheduler.leases():
            is_it = lease.key == notification.key and fingerprint(lease._id) == notification.lease
            if is_it and lease._suspect_revocation():
                self._post(lease)

    # -- its own thread -----------------------------------------------------------------------------

    def _post(self, chore: _Chore) -> None:
        self._chores.append(chore)
        self._wake()

    def _wake(self) -> None:
        self._ensure_thread()
        self._poked.put(None)
        connection = self._connection
        if connection is not None:
            connection.wake()

    def _ensure_thread(self) -> None:
        """Have the timers' thread start ours.

        Neither Ctrl-C nor the garbage collector, which may bring a dropped lease here in the middle of
        anything, gets in the way there.
        """
        if self._thread is None or not self._thread.is_alive():
            timers_for(_SYSTEM).at(0.0, self._start_in_time)

    def _start_in_time(self) -> None:
        with suppress(RuntimeError):  # the interpreter ends: `close` does what is left to do
            if self._chores:  # else `close` has done them
                self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="dibs-keeper", daemon=True)
                thread.start()
                self._thread = thread

    def _work_here(self) -> None:
        """Do what is to be done in this thread, once."""
        try:
            connection = self.store.blocking_connection()
            try:
                connection.open(self._connect_timeout)
                self._work(connection, self._take_chores())
            finally:
                connection.close()
        except Exception as error:  # noqa: BLE001  # there is nobody left to try again
            log.warning("what is given up at %s stays for its ttl: %s", self.store.url, error)

    def _run(self) -> None:
        while not self._closing:
            if self._has_ended():
                return
            try:
                self._round()
                self._pause = 0.0
            except Exception as error:  # noqa: BLE001  # it survives everything
                self._stumble(error)
        self._disconnect()

    def _has_ended(self) -> bool:
        """End if the client is closed and nothing is left to do; what comes later starts another thread."""
        if not self.client_closed or self._chores or self._scheduler.leases():
            return False
        with self._starting:
            self._thread = None
            if self._chores:  # came in between, and whoever asked saw a thread
                self._thread = threading.current_thread()
                return False
            self._disconnect()
        return True

    def _round(self) -> None:
        connection = self._connection or self._connect()
        while not self._poked.empty():
            self._poked.get()
        chores = self._take_chores()
        if chores:
            self._work(connection, chores)
        elif not self._closing:
            for notification in connection.notifications(None):
                self.notifications.deliver(notification)

    def _connect(self) -> BlockingConnection:
        connection = self.store.blocking_connection()
        try:
            connection.open(self._connect_timeout)
            connection.subscribe(self._connect_timeout)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self.notifications.recheck()
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:
                log.debug("closing the keeper's connection failed", exc_info=True)

    def _stumble(self, error: Exception) -> None:
        """The store is away, or worse: tell those who wait for a renewal, and try again soon."""
        if self._pause:  # a connection that broke may be made anew at once, and nobody need know
            self._complain(error)
        else:
            log.debug("the connection to %s broke: %s", self.store.url, error)
        self._disconnect()
        for chore in self._take_chores():
            self._failed(chore, error)
        self._pause = min(max(2 * self._pause, 0.05), MAX_PAUSE)
        try:
            self._poked.get(timeout=self._pause)
        except Empty:
            pass

    def _complain(self, error: Exception) -> None:
        """Log once in an outage that leases can't be renewed; who calls meanwhile is told himself."""
        is_news = bool(self._scheduler.leases()) and not self._complained
        self._complained = self._complained or is_news
        log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "what is held at %s can't be renewed now, and is tried again: %s",
            self.store.url,
            error,
        )

    def _take_chores(self) -> list[_Chore]:
        chores = []
        while self._chores:
            chores.append(self._chores.popleft())
        return chores

    def _work(self, connection: BlockingConnection, chores: list[_Chore]) -> None:
        """Renew the leases with short ttls first, then resize, then give up what is abandoned.

        A batch has leases of about the same ttl, as the shortest limits the time that it may take.
        """
        renewals = [(c, c._renewal()) for c in chores if not isinstance(c, _Abandoned | Gate)]
        renewals.sort(key=lambda each: (_magnitude(each[1]), each[0]._deadline))
        given_up = [c for c in chores if isinstance(c, _Abandoned)]
        for _, alike in groupby(renewals, lambda each: _magnitude(each[1])):
            for batch in _batches(list(alike)):
                commands = [command for _, command in batch]
                answers = self._call(connection, commands, is_late=self._is_late(batch))
                for (lease, _), answer in zip(batch, answers, strict=True):
                    self._tell(lease, answer)
        for abandoned in _batches(given_up):
            now = self._clock.now()
            answers = self._call(connection, [chore.command(now) for chore in abandoned])
            for chore, answer in zip(abandoned, answers, strict=True):
                if isinstance(answer, DibsError):
                    self._failed(chore, answer)
        for gate in chores:
            if isinstance(gate, Gate):
                gate.open()

    def _is_late(self, batch: Sequence[tuple[Watched, Command]]) -> bool:
        """Whether renewals have failed for so long that these get their whole time limit.

        Else a lease with a short ttl could cost others theirs, at a store that takes long for many of them.
        """
        now = self._clock.now()
        return any(lease._deadline - now < lease.ttl / 3 for lease, _ in batch)

    def _spare(self, command: Command) -> float:
        """Seconds for a batch of such commands: a quarter of the time left to leases with shorter ttls.

        They can be at another placement of the same service, and a placement that hangs must not cost them
        their renewals.
        """
        size = _magnitude(command)
        ends = min((end for other, end in self._earliest().items() if other < size), default=inf)
        return (ends - self._clock.now()) / 4

    def _earliest(self) -> Mapping[int, float]:
        """The earliest deadline of the leases with ttls of each magnitude that are to be renewed.

        It is used for 20 times as long as it took to find, so very many leases cost little. Deadlines that
        are renewed meanwhile are later than it says.
        """
        now = self._clock.now()
        if now >= self._seek_at:
            found: dict[int, float] = {}
            for lease in self.leases():
                size = _size(lease.ttl)
                found[size] = min(found.get(size, inf), lease._renew_by)
            self._ends, self._seek_at = found, now + 20 * (self._clock.now() - now)
        return self._ends

    def _note(self, outcomes: Sequence[Outcome]) -> None:
        """Complain where the store has answered nothing. That it can't do something is an answer."""
        errors = [outcome for outcome in outcomes if isinstance(outcome, DibsError)]
        if len(errors) == len(outcomes):
            self._complain(errors[0])
        else:
            self._complained = False

    def _tell(self, lease: Watched, answer: TimedReply | DibsError) -> None:
        """Give a lease its answer. An error in one lease costs no other its renewal."""
        try:
            if isinstance(answer, DibsError):
                lease._not_renewed(answer)
            else:
                lease._renewed(answer)
        except Exception:
            log.exception("telling a lease of its renewal failed")

    def _call(
        self,
        connection: BlockingConnection,
        commands: Sequence[Command],
        *,
        is_late: bool = False,
    ) -> list[TimedReply | DibsError]:
        sent = self._clock.now()
        outcomes: Sequence[Outcome]

        async def apply(some: Sequence[Command]) -> Sequence[Reply]:
            spare = None if is_late else self._spare(some[0])
            limits = [time_limit(command, self._call_timeout, spare) for command in some]
            return connection.apply(some, min(limits))

        try:
            outcomes = step(apply_in_halves(apply, commands))
        except Exception as error:  # a connection's own fault costs nobody a lease
            log.exception("the keeper's connection to %s failed", self.store.url)
            self._disconnect()
            outcomes = [BackendUnavailable(f"the store failed: {error!r}")] * len(commands)
        self._note(outcomes)
        return [_answer(outcome, sent) for outcome in outcomes]

    def _failed(self, chore: _Chore, error: Exception) -> None:
        if isinstance(chore, Gate):
            chore.open()
        elif isinstance(chore, _Abandoned):
            self._try_later(chore)
        else:
            chore._not_renewed(error)

    def _try_later(self, chore: _Abandoned) -> None:
        """Try again a few times. In the end the lease ends by itself, after its ttl."""
        if chore.tries < 8:
            again = chore._replace(tries=chore.tries + 1)
            self._timers.at(self._clock.now() + 0.1 * 2**chore.tries, lambda: self._post(again))


def _magnitude(command: Command) -> int:
    """The magnitude of its ttl; a higher one for commands without a ttl."""
    return _size(getattr(command, "ttl", NO_TTL))


def _size(ttl: float) -> int:
    """The magnitude of a ttl: the same for all ttls between two powers of two."""
    return frexp(ttl)[1]


def _answer(outcome: Outcome, sent: float) -> TimedReply | DibsError:
    if isinstance(outcome, DibsError):
        return outcome
    if isinstance(outcome, Failed):
        return DibsError(outcome.detail)
    return TimedReply(outcome, sent)


def _batches[T](items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + MAX_BATCH] for start in range(0, len(items), MAX_BATCH)]


_keepers: WeakSet[StoreKeeper] = WeakSet()


@atexit.register
def _at_exit() -> None:
    """Give up what is still held, so that others need not wait for its ttl."""
    for keeper in list(_keepers):
        keeper.close()
