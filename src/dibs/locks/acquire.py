"""Acquire: try, queue, wait for a notification or for time, confirm, and give up without a trace.

If an attempt ends without a grant, it gives up its lease id: after a time-out in the foreground; after a
cancellation, an interrupt or an error in the background. It leaves a tombstone if a copy of its Acquire may
still be under way.
"""

from collections.abc import Callable
from contextlib import suppress
from math import inf

from dibs.core.names import fingerprint
from dibs.core.proof import is_proven
from dibs.core.timing import DRIFT, TOMBSTONE_TTL, trusted
from dibs.errors import AcquireTimeout, BackendUnavailable, Deadlock, DibsError
from dibs.locks import hooks
from dibs.locks.deadlock import DeadlockDetector, may_deadlock
from dibs.locks.lease import give_up, tombstone
from dibs.locks.messages import (
    ASIDE,
    is_away,
    raise_if_busy,
    refusal,
    timed_out,
    unexpected,
    upgrades_deadlocked,
)
from dibs.locks.requests import AcquireRequest, Grant, new_id
from dibs.locks.waiting import OnWait, WaitReporter
from dibs.model import (
    Failed,
    Gone,
    Granted,
    Holder,
    Inspect,
    Notification,
    Queued,
    Refused,
    Release,
    Reply,
    Status,
)
from dibs.runtime.port import Runtime, Signal, TimedReply

BRIEFLY = 1.0
"""Seconds that a store has for an answer, even if less is left to wait."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two tries while the store is away, at first and after a while."""

CLOCKS_DIFFER = 0.001
"""Seconds to wait beyond `recheck_in`, so that the store is never asked before its own deadline."""

WITHOUT_INBOX = 0.05
"""Seconds between two questions of a waiter that has no inbox for notifications."""

HEAD_DELAY = 0.02
"""Seconds before a waiter that has become the head asks. Short holds end sooner: most need no question."""

SECOND_LOOK = 0.25
"""Seconds after which an upgrade that found somebody ahead asks again: it may be its own earlier try."""


class AttemptStopped(Exception):
    """The `StopSignal` of this attempt was set."""


class StopSignal:
    """Ends the waits of what runs in the background, in a thread as in a task."""

    def __init__(self) -> None:
        self._waiting: dict[int, Signal] = {}
        self.is_set: bool = False

    def set(self) -> None:
        """End all waits. Can be called from any thread."""
        self.is_set = True
        for signal in list(self._waiting.values()):
            signal.set()

    async def wait(self, signal: Signal, timeout: float | None) -> bool:
        """Wait for `signal`; return whether it is set. Raises `AttemptStopped` once this was set."""
        number = id(signal)
        self._waiting[number] = signal  # first, so that `set` finds it from now on
        try:
            was_set = self.is_set or await signal.wait(timeout)
        finally:
            self._waiting.pop(number, None)
        if self.is_set:
            raise AttemptStopped
        return was_set


class WaitChecks:
    """Run from time to time during a wait: the report to `on_wait`, and deadlock detection."""

    def __init__(self, rt: Runtime, request: AcquireRequest, on_wait: OnWait | None) -> None:
        self._rt = rt
        self.ahead: int | None = None
        """How many were ahead by the store's last answer; None outside the queue."""
        self.is_moving: bool = False
        """Whether the key's directory is moving to another store, by the last answer."""
        self._reporter: WaitReporter | None = None
        self._detector: DeadlockDetector | None = None
        since = rt.now()
        if on_wait is not None:
            self._reporter = WaitReporter(rt, request.key, on_wait, since)
        # what it acquires in its own `on_wait` counts, too; otherwise it cannot come to hold anything
        if may_deadlock(rt, request) and (on_wait is not None or rt.holding.of(rt.me())):
            self._detector = DeadlockDetector(rt, request, since)

    @property
    def due_at(self) -> float:
        """The time at which one of them is due."""
        due = [each.due_at for each in (self._reporter, self._detector) if each is not None]
        return min(due, default=inf)

    async def run(self, waiter: str) -> None:
        """Run what is due. `waiter` is its fingerprint, empty outside the queue. Raises `Deadlock`."""
        rt, reporter, detector = self._rt, self._reporter, self._detector
        try:
            if reporter is not None and reporter.due_at <= rt.now():
                await reporter.report(waiter, self.ahead, is_moving=self.is_moving)
            if detector is not None and waiter and detector.due_at <= rt.now():
                await detector.look(waiter)
        except Deadlock:
            raise
        except DibsError:
            pass  # the store is away, which the wait itself finds out

    def end(self) -> None:
        """The wait is over."""
        if self._detector is not None:
            self._detector.end()


class AcquireAttempt:
    """An attempt to acquire one key. Setting `stop` ends its waits with `AttemptStopped`.

    It begins with `lease_id`, else with a new id. If the store has ended an id because nobody claimed its
    grant, it goes on with what `next_id` returns. With `keep_id` the id belongs to the caller, who gives it
    up: the attempt never releases it, and fails if it has ended. `before_wait` is called once, if the first
    answer was no grant.
    """

    def __init__(
        self,
        rt: Runtime,
        request: AcquireRequest,
        on_wait: OnWait | None = None,
        lease_id: str | None = None,
        stop: StopSignal | None = None,
        *,
        next_id: Callable[[], str] = new_id,
        keep_id: bool = False,
        before_wait: Callable[[], None] | None = None,
    ) -> None:
        self.last_reply: Reply | None = None
        """The last answer of the store."""
        self.trouble: BackendUnavailable | None = None
        """Why the store did not answer the last command; None if it did, or nothing is known yet."""
        self._rt = rt
        self._request = request
        self._on_wait = on_wait
        self._id = lease_id or new_id()
        self._stop = stop
        self._next_id = next_id
        self._keep_id = keep_id
        self._before_wait = before_wait
        self._doubtful = False
        """A copy of a command may still be under way, or a grant to this id may have ended unseen."""
        self._sent: float | None = None
        """When the last command with an answer was sent."""
        self._in_flight = False
        self._over = True
        """There is nothing to be given up."""
        self._inbox = ""
        """Where the store sends notifications, as of the last answer."""
        self._checks: WaitChecks | None = None
        """None until it waits."""
        self._queued = False
        self._was_behind = False
        """It upgrades, and found somebody ahead of it once."""

    @property
    def is_doubtful(self) -> bool:
        """Whether a copy of its Acquire can still be under way, or a grant to it may have ended unseen."""
        return self._doubtful or self._in_flight

    def keep_position(self) -> None:
        """Before a cancellation: leave the id in the queue, or holding what was just granted to it."""
        self._over = True

    async def run(self, wait: float | None) -> Grant:
        """Acquire within `wait` seconds (None: no limit; 0: one try, which raises when refused)."""
        self._rt.keeper.prepare()
        try:
            until = inf if wait is None else self._rt.now() + wait
            answer = await self._send(until, queue=wait != 0)
            if type(answer.reply) is Granted:
                return self._granted(answer.reply, answer.sent)
            if wait == 0:
                return await self._try_again(answer, until + BRIEFLY)
            if self._before_wait is not None:
                self._before_wait()
            return await self._in_turn(wait, until, answer)
        except BaseException:
            if not self._over:
                self._abandon()
            raise
        finally:
            if self._queued:
                self._rt.notifications.forget(self._request.key, fingerprint(self._id))
            if self._checks is not None:
                self._checks.end()

    async def _try_again(self, answer: TimedReply, until: float) -> Grant:
        """The one try was refused. Try again as long as the store is still removing expired leases."""
        reply = answer.reply
        while isinstance(reply, Refused) and reply.reason != "too_large" and reply.recheck_in <= 0:
            if self._rt.now() >= until:
                break
            answer = await self._send(until, queue=False)
            reply = answer.reply
        if isinstance(reply, Granted):
            return self._granted(reply, answer.sent)
        self._doubtful = self._doubtful or is_away(reply)
        self._over = not self._doubtful and isinstance(reply, Refused | Failed)
        if isinstance(reply, Refused):
            raise refused(self._request, reply)
        raise unexpected(reply, self._request.key)

    async def _in_turn(self, wait: float | None, until: float, answer: TimedReply) -> Grant:
        """Wait, and ask again as often as there is reason to."""
        while True:
            reply = answer.reply
            if isinstance(reply, Granted):
                return self._granted(reply, answer.sent)
            grant = None
            if isinstance(reply, Queued):
                grant = await self._wait_in_queue(answer, reply, until)
            elif isinstance(reply, Refused):
                await self._wait_outside(reply, until)
            elif isinstance(reply, Gone) and not self._keep_id:
                self._begin_anew()
            else:
                raise unexpected(reply, self._request.key)
            if grant is not None:
                return grant
            if self._rt.now() >= until:
                await self._leave_queue()
                if isinstance(reply, Refused) and reply.reason == "moving":
                    raise refused(self._request, reply)
                raise await self._timed_out(wait)
            answer = await self._send(until, queue=True)

    # -- asking the store ---------------------------------------------------------------------------

    async def _send(self, until: float, *, queue: bool) -> TimedReply:
        """Send an Acquire. While the store is away, send it again.

        Raises `BackendUnavailable` at `until`; without such an end after `connect_timeout`.
        """
        rt = self._rt
        now = rt.now()
        limit = until if until < inf else now + rt.connect_timeout
        at_least, pause = now + BRIEFLY, 0.0
        while True:
            try:
                if not rt.is_ready:
                    await rt.ready(max(limit - now, BRIEFLY))
                    now = rt.now()
                command = self._request.command(self._id, rt.inbox, queue=queue)
                self._in_flight, self._over = True, False
                answer = await rt.call(command, max(limit - now, BRIEFLY))
                if queue:
                    raise_if_busy(answer.reply, self._request.key)
                self._in_flight = False
                self.last_reply, self.trouble = answer.reply, None
                self._inbox = command.inbox
                if answer.resent or self._was_silent(answer.sent):
                    self._doubtful = True
                self._sent = answer.sent
                return answer
            except BackendUnavailable as error:
                self._doubtful, self.trouble = True, error
                if rt.now() >= max(limit, at_least):
                    raise
            at_least = limit
            if pause:
                await self._wait(rt.signal(), min(pause, max(limit - rt.now(), 0.0)))
            pause = min(2 * pause, LONGEST_PAUSE) or FIRST_PAUSE
            now = rt.now()

    async def _leave_queue(self) -> None:
        """Leave at once, so that the store grants nothing to this id any more."""
        if self._keep_id:
            return
        bury = tombstone(self._rt, self.is_doubtful)
        await self._rt.call(Release(self._request.key, self._id, tombstone=bury), ASIDE)
        self._over = True

    def _abandon(self) -> None:
        """Give up whatever this id may have, in the background."""
        if not self._keep_id:
            give_up(self._rt, self._request.key, self._id, self.is_doubtful)

    def _begin_anew(self) -> None:
        """The id has ended: its grant was not claimed while this process was paused. Take another."""
        self._rt.notifications.forget(self._request.key, fingerprint(self._id))
        self._id = self._next_id()
        self._doubtful = False
        self._sent = None

    def _was_silent(self, sent: float) -> bool:
        """Whether the last answer is so long ago that a tombstone of this id may be gone.

        Half of a tombstone's ttl: the answer before may have been that late, too.
        """
        return self._sent is not None and sent - self._sent > TOMBSTONE_TTL / 2

    # -- waiting ------------------------------------------------------------------------------------

    async def _wait(self, signal: Signal, timeout: float) -> bool:
        if self._stop is None:
            return await signal.wait(timeout)
        return await self._stop.wait(signal, timeout)

    async def _wait_in_queue(self, answer: TimedReply, reply: Queued, until: float) -> Grant | None:
        """Wait for a notification, or until it is time to ask again; None means: ask again."""
        rt, checks = self._rt, self._begin_to_wait()
        self._queued, checks.ahead, checks.is_moving = True, reply.position, False
        if self._request.held and reply.position:
            if self._was_behind:
                await self._refuse_upgrade(reply.position)
            self._was_behind = True
            pause = min(SECOND_LOOK, max(until - rt.now(), 0.0))
            await self._wait(rt.signal(), pause)
            return None
        pause = reply.recheck_in + CLOCKS_DIFFER
        if not rt.inbox:
            await rt.listen()
        if rt.inbox != self._inbox:
            return None  # ask again, so that the store learns the inbox
        if not self._inbox:
            pause = min(pause, WITHOUT_INBOX)
        end = min(rt.now() + pause, until)
        key, waiter = self._request.key, fingerprint(self._id)
        while True:
            await self._run_checks(checks, waiter)
            signal = rt.signal()
            rt.notifications.expect(key, waiter, signal)
            if await self._wait(signal, max(min(end, checks.due_at) - rt.now(), 0.0)):
                news = signal.value
                if isinstance(news, Notification) and news.event == "granted":
                    return self._notified(news, answer.sent, reply.now)
                if not isinstance(news, Notification) or news.event != "head":
                    return None
                end = min(end, rt.now() + HEAD_DELAY)
                continue
            if rt.now() >= end or not rt.notifications.pause(key, waiter):
                return None

    async def _refuse_upgrade(self, position: int) -> None:
        """Another reader waits to upgrade, and each would wait for the other to leave."""
        with suppress(DibsError):  # then it is given up in the background
            await self._leave_queue()
        raise upgrades_deadlocked(self._request.key, position)

    async def _wait_outside(self, reply: Refused, until: float) -> None:
        """The queue is full, or the directory moves: try again when time may have changed that."""
        if reply.reason == "too_large":
            self._over = True
            raise refused(self._request, reply)
        checks = self._begin_to_wait()
        checks.is_moving = reply.reason == "moving"
        if checks.is_moving and self._queued:
            self._doubtful = True  # what the old store granted to this id ends unseen
        if checks.due_at <= self._rt.now():
            checks.ahead = None
            await self._run_checks(checks, "")
        pause = min(max(reply.recheck_in, 0.05), 1.0, until - self._rt.now())
        await self._wait(self._rt.signal(), max(pause, 0.0))

    def _begin_to_wait(self) -> WaitChecks:
        if self._checks is None:
            self._checks = WaitChecks(self._rt, self._request, self._on_wait)
        return self._checks

    async def _run_checks(self, checks: WaitChecks, waiter: str) -> None:
        try:
            await checks.run(waiter)
        except Deadlock:
            with suppress(DibsError):  # then it is given up in the background
                await self._leave_queue()
            raise

    # -- ends ---------------------------------------------------------------------------------------

    def _granted(self, reply: Granted, sent: float) -> Grant:
        return Grant.of(self._id, reply, sent, doubtful=self._doubtful)

    def _notified(self, notification: Notification, sent: float, store_now: float) -> Grant | None:
        """A grant by notification, if it is proven and still stands for a while; else None: ask the store.

        The store granted at `granted_at`. It had answered our last message, sent at `sent`, at
        `store_now`. So by our clock, which may run slower, it granted no earlier than `sent` plus nearly
        the difference.

        A store without a clock granted after `sent`, if all our messages were answered: each answer said that
        this id waits, and an id that was granted and has ended does not wait again. If an answer was lost, a
        grant may have been claimed and have expired meanwhile, and the notification be of that one.
        """
        rt = self._rt
        granted = sent
        if rt.capabilities.clock:
            if notification.granted_at < store_now:
                return None
            granted += (1 - DRIFT) * (notification.granted_at - store_now)
            granted = min(granted, rt.now())  # in case the store's clock was stepped
        elif self._doubtful:
            return None
        if not is_proven(notification, self._id):
            return None
        claim_by = granted + notification.claim_timeout / 3
        if rt.now() >= claim_by:
            return None
        deadline = granted + trusted(notification.claim_timeout)
        return Grant(
            self._id,
            notification.token,
            notification.slots,
            granted,
            deadline,
            claim_by,
            self._doubtful,
        )

    async def _timed_out(self, wait: float | None) -> AcquireTimeout:
        holders: tuple[Holder, ...] = ()
        with suppress(DibsError):
            status = (await self._rt.call(Inspect(self._request.key), ASIDE)).reply
            if isinstance(status, Status):
                holders = status.holders
        if hooks.observer is not None:
            hooks.observer.in_the_way(holders)
        ahead = None if self._checks is None else self._checks.ahead
        return timed_out(self._request.key, holders, wait, ahead)


def refused(request: AcquireRequest, reply: Refused) -> DibsError:
    """The error for a refused request."""
    if hooks.observer is not None:
        hooks.observer.in_the_way(reply.holders)
    return refusal(request.key, request.units, reply)
