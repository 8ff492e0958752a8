"""Acquire in fair mode, through a broker, which keeps the order: `Semaphore(..., fair=True)`."""

from asyncio import CancelledError
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, repeat
from math import inf

from temporalio import workflow

from dibs.core.names import key_of
from dibs.core.timing import TOMBSTONE_TTL
from dibs.errors import DibsError
from dibs.locks.messages import describe_holders, format_duration, format_key
from dibs.model import Acquire, Failed, Gone, Inspect, Notification, Refused, Release, Reply, Status
from dibs.stores.temporal.ids import QUEUE, serve_hint, terminate_hint, unserved_message
from dibs.stores.temporal.wire import AGES
from dibs.temporal.alarm import Alarm
from dibs.temporal.errors import AcquireTimedOut, AlreadyHeld, Misused, NotServed, checked
from dibs.temporal.fair.calls import Broker, BrokerCalls, PendingCall
from dibs.temporal.fair.lease import BrokeredLease, pause
from dibs.temporal.fair.permit import FairPermit
from dibs.temporal.options import AcquireOptions, PermitPool
from dibs.temporal.permit import Handoff, to_its_end

REMINDERS = (60.0, 600.0, 3600.0)
"""Seconds until the first reminder, then to the second one, then between all further ones."""
ANSWERED = 5.0
"""Seconds for the broker's first answer, even if `wait` is shorter: it may have to start."""
SERVED = 300.0
"""Seconds without an answer after which the broker counts as unserved, even without `wait`."""
LAST_WORDS = 5.0
"""Seconds that a waiter which gives up waits for the names of the holders."""


class QueuedAcquire:
    """One acquire, from its call to the broker until it is granted, refused or given up.

    The broker notifies the waiter, so its history grows only by reminders: it repeats the call after 60 s,
    11 min and 71 min, and then once an hour, because somebody may have ended the broker, and the queue with
    it. Each reminder is 14 events: 28 in the first hour, and 14 in each later one.
    """

    def __init__(self, calls: BrokerCalls, broker: Broker, acquire: Acquire, *, fast: bool) -> None:
        self.lease: BrokeredLease = BrokeredLease(acquire.id, acquire.ttl)
        self.alarm: Alarm = Alarm()
        """Wakes the wait. The permit takes it over, with its timer."""
        self.answered: bool = False
        """The broker has answered."""
        self._calls = calls
        self._broker = broker
        self._acquire = acquire
        self._fast = fast
        self._call: PendingCall | None = None
        self._left = False

    @property
    def settled(self) -> bool:
        """Nothing is left to wait for."""
        return self.lease.granted or self.lease.refusal is not None or self.failure is not None

    @property
    def failure(self) -> Exception | None:
        """Why the call did not reach the broker. After the first answer, failed reminders do not count."""
        return None if self.answered or self._call is None else self._call.trouble

    @property
    def has_started_broker(self) -> bool:
        """This acquire has started the broker, on our task queue."""
        return self._call is not None and self._call.has_started

    async def settle(self, until: float | None) -> None:
        """Wait for the outcome until then at most. A cancellation meanwhile gives the position up."""
        self._calls.listen(self.lease.fingerprint, self._notified)
        try:
            await self._be_served(until)
        except (Exception, CancelledError):
            self._calls.raise_if_evicted()
            await to_its_end(self.leave())
            raise

    async def _be_served(self, until: float | None) -> None:
        began = workflow.time()
        reminders = _reminders(began)
        self._ask()
        again = next(reminders)
        while not self.settled:
            now = workflow.time()
            end = self._end(began, until)
            if now >= end:
                return
            if now >= again:
                self._remind()
                again = next(reminders)
            await self.alarm.wait(min(again, end), f"waits for {self._broker.named}")

    def _end(self, began: float, until: float | None) -> float:
        """Time at which to give up, as of now."""
        if self.answered:
            return inf if until is None else until
        return began + SERVED if until is None else max(until, began + ANSWERED)

    def _ask(self) -> None:
        self._call = self._calls.send(
            PendingCall(
                self._broker,
                [self._acquire],
                self._replied,
                self.alarm,
                wanted=lambda: not self._left,
                starts=True,
                fast=self._fast,
            )
        )

    def _remind(self) -> None:
        """Repeat the call. It keeps the position, or gets one if it was lost."""
        if not self.answered:
            workflow.logger.warning(
                "the broker of %s has not answered: does a worker serve the task queue %s? "
                "`dibs temporal worker` does",
                self._broker.named,
                self._broker.queue,
            )
        if self._call is None or self._call.over:
            self._ask()

    def _replied(self, replies: Sequence[Reply], sent: float) -> None:
        self.answered = True
        self.lease.take_reply(replies[0], sent)

    def _notified(self, given: Notification) -> None:
        self.lease.take_notification(given, workflow.time())
        self.alarm.ring()

    async def leave(self) -> None:
        """Give it up, and what was granted meanwhile. The release follows the call, never overtakes it."""
        await self._leave(PendingCall(self._broker, [self._release]))

    async def leave_and_ask(self) -> Status | None:
        """Give it up, and return the holders and waiters; None without an answer."""
        found: list[Status] = []

        def take(replies: Sequence[Reply], sent: float) -> None:
            found.extend(reply for reply in replies if isinstance(reply, Status))

        last = PendingCall(self._broker, [Inspect(self._broker.key), self._release], take)
        await self._leave(last)
        if self.answered:
            until = workflow.time() + LAST_WORDS
            await last.wait_settled(until, f"asks who holds {self._broker.named}")
            last.alarm.close()
        return found[0] if found else None

    async def _leave(self, last: PendingCall) -> None:
        self._left = True
        if self._call is not None:
            await self._call.wait_over()
        await self._calls.send(last).wait_over()
        self.forget()

    def forget(self) -> None:
        """Stop listening, because it is over at the broker too."""
        self.alarm.close()
        self._calls.leave(self.lease.fingerprint)

    @property
    def _release(self) -> Release:
        return Release(self._broker.key, self._acquire.id, tombstone=TOMBSTONE_TTL)


def _reminders(start: float) -> Iterator[float]:
    """Times of the reminders."""
    reminders = accumulate(chain(REMINDERS, repeat(REMINDERS[-1])), initial=start)
    next(reminders)
    return reminders


async def acquire_fair(pool: PermitPool, asked: AcquireOptions) -> FairPermit:
    """Acquire units of a resource, in the order of priority and arrival.

    Raises `AcquireTimedOut` after `asked.wait`, `AlreadyHeld` if this task would wait for itself,
    `NotServed` if no worker serves the broker, `Misused` for more units than there are. A cancellation while
    waiting gives the position up before it is raised.
    """
    calls, broker = BrokerCalls.of_this_run(), _broker(pool)
    if asked.units > pool.capacity:
        raise Misused(f"units is {asked.units}, and {pool!r} has no more than its capacity")
    held = calls.held_here(broker.key)
    if asked.wait != 0 and held + asked.units > pool.capacity:
        raise AlreadyHeld(
            f"this task holds {held} of {pool.capacity} units of {format_key(broker.key)} itself, so it "
            "would wait for ever: pass the permit on to what needs it, or leave its block before",
            key=broker.key,
        )
    began = workflow.time()
    until = None if asked.wait is None else began + asked.wait
    while True:
        acquire = QueuedAcquire(
            calls, broker, _command(broker, pool, asked), fast=pool.on_holder_close == "fast"
        )
        await acquire.settle(until)
        lease = acquire.lease
        if lease.granted and not lease.lost(workflow.time()):
            ends = workflow.time() + asked.max_hold
            return FairPermit(
                pool, calls, broker, lease, acquire.alarm, until=ends, renews=asked.auto_renew
            )
        if lease.granted or isinstance(lease.refusal, Gone):
            # this run's worker was away for longer than the grant lasted: queue again
            await to_its_end(acquire.leave())
            continue
        raise await _failure(acquire, broker, asked.units, began)


def _command(broker: Broker, pool: PermitPool, asked: AcquireOptions) -> Acquire:
    info = workflow.info()
    # A holder that ends without a release leaves part of its lease, which counts towards the quarantine.
    left_over = asked.ttl - pause(asked.ttl) if asked.auto_renew else 0.0
    return Acquire(
        broker.key,
        urlsafe_b64encode(workflow.random().randbytes(18)).decode(),  # a replay draws the same
        f"{info.workflow_id}/{info.run_id}/{info.workflow_type}",
        asked.ttl,
        units=asked.units,
        capacity=pool.capacity,
        queue=asked.wait != 0,
        waiter_ttl=AGES if asked.wait is None else asked.wait + asked.ttl,
        priority=asked.priority,
        note=asked.note,
        lock_delay=max(pool.quarantine - left_over, 0.0),
    )


async def reattach_fair(pool: PermitPool, handoff: Handoff) -> FairPermit:
    """The permit that an earlier run has detached. Raises `PermitLost` if it has ended meanwhile."""
    calls, broker = BrokerCalls.of_this_run(), _broker(pool)
    with checked():
        try:
            lease = BrokeredLease.taken_over(
                str(handoff.more["lease"]),
                handoff.ttl,
                token=int(handoff.token or 0),
                slots=tuple(int(slot) for slot in handoff.slots),
                deadline=float(handoff.more["deadline"]),
            )
        except KeyError as missing:
            raise ValueError(f"this handoff has no {missing}: it is of no fair permit") from missing
    permit = FairPermit(
        pool,
        calls,
        broker,
        lease,
        Alarm(),
        until=handoff.until,
        renews=handoff.renews,
        acquired_at=handoff.acquired_at,
    )
    await permit.take_up()
    return permit


def _broker(pool: PermitPool) -> Broker:
    with checked():
        key = key_of("lock" if pool.kind == "lock" else "semaphore", pool.resource)
    return Broker(key, pool.task_queue or QUEUE)


# -- why there is no permit -------------------------------------------------------------------------


async def _failure(acquire: QueuedAcquire, broker: Broker, units: int, began: float) -> DibsError:
    """The error of an acquire that was not granted. It is over at the broker then."""
    refused = acquire.lease.refusal
    if isinstance(refused, Refused | Failed):
        acquire.forget()
        return _refusal(broker, units, refused)
    if acquire.failure is not None:
        acquire.forget()
        return NotServed(
            f"the broker of {format_key(broker.key)} can't be asked: {acquire.failure}",
            key=broker.key,
        )
    status = await to_its_end(acquire.leave_and_ask())
    waited = workflow.time() - began
    if not acquire.answered:
        return unanswered(broker, waited, was_there=not acquire.has_started_broker)
    return _timed_out(broker, acquire.lease.fingerprint, waited, status)


def _refusal(broker: Broker, units: int, reply: Refused | Failed) -> DibsError:
    """The error for units that are not available now, or ever."""
    if isinstance(reply, Failed):
        kind = Misused if reply.reason == "invalid" else NotServed
        return kind(f"{format_key(broker.key)}: {reply.detail}", key=broker.key)
    if reply.reason == "too_large":
        return Misused(
            f"cannot acquire {units} units of {format_key(broker.key)}: its last declared capacity "
            "is smaller",
            key=broker.key,
        )
    text = describe_holders(broker.key, reply.holders, None)
    if reply.reason == "queue_full":
        text += "; and no more can wait for it"
    return AcquireTimedOut(
        text, key=broker.key, holders=reply.holders, retry_after=reply.recheck_in
    )


def _timed_out(broker: Broker, lease: str, waited: float, status: Status | None) -> AcquireTimedOut:
    """The error after a wait, with the holders at its end."""
    holders = [each for each in status.holders if each.lease != lease] if status else []
    waiters = [waiter.lease for waiter in status.waiters] if status else []
    ahead = waiters.index(lease) if lease in waiters else None  # unknown far back in a long queue
    named = tuple(holders[:8])
    return AcquireTimedOut(
        f"{describe_holders(broker.key, named, ahead)}; gave up after {format_duration(waited)}",
        key=broker.key,
        holders=named,
        position=ahead,
        retry_after=min((holder.expires_in for holder in holders), default=None),
    )


def unanswered(broker: Broker, waited: float, *, was_there: bool) -> NotServed:
    """The error for a broker that never answered. Only the workflow that starts it knows its queue."""
    text = (
        f"{broker.id}, which keeps {format_key(broker.key)}, has not answered for "
        f"{format_duration(waited)}: "
    )
    end = terminate_hint(broker.id)
    if was_there:
        text += (
            f"it has been there before, and {unserved_message(broker.queue, ', or whichever it is on')} "
            f"(`temporal workflow describe` shows it): {serve_hint(broker.queue)}; or, if nobody holds "
            f"anything there, {end} has it started anew"
        )
    else:
        text += (
            f"{unserved_message(broker.queue, ', on which it has just been started')}: "
            f"{serve_hint(broker.queue)}; or name the queue that has one, by task_queue= or "
            f"TEMPORAL_TASK_QUEUE, after {end}: as long as it is there all go to it"
        )
    return NotServed(text, key=broker.key)
