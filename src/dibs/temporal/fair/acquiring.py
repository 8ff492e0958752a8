"""Acquiring through a broker, which keeps the order: `Semaphore(..., fair=True)`."""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, repeat
from math import inf

from temporalio import workflow

from dibs.core.names import key_of
from dibs.core.timing import TOMBSTONE_TTL
from dibs.errors import DibsError
from dibs.locks.messages import describe_holders, format_duration, format_key
from dibs.model import (
    Acquire,
    Failed,
    Gone,
    Holder,
    Inspect,
    Notification,
    Refused,
    Release,
    Reply,
    Status,
)
from dibs.stores.temporal.protocol.ids import QUEUE
from dibs.stores.temporal.protocol.queues import serve, terminate, unserved
from dibs.stores.temporal.protocol.wire import AGES
from dibs.temporal.failures import AcquireTimedOut, AlreadyHeld, Misused, NotServed, checked
from dibs.temporal.fair.lease import BrokeredLease, pause
from dibs.temporal.fair.line import Bell, Broker, Calling, Line
from dibs.temporal.fair.permit import FairPermit
from dibs.temporal.permits.permit import Handoff, to_its_end
from dibs.temporal.permits.terms import Pool, Terms

REMINDERS = (60.0, 600.0, 3600.0)
"""It asks again after so many seconds, then so many more, and then every so often as the last."""
ANSWERED = 5.0
"""So long a broker may take for its first answer, however short the wait: it may have to be started."""
SERVED = 300.0
"""One that has not answered for so long is served by nobody, though the wait has no end."""
LAST_WORDS = 5.0
"""Whoever gives up may wait so long to be told who was in the way."""


class QueueEntry:
    """One acquire, from its question until it is granted, refused or given up.

    It asks once, and is told of its turn. A waiter's history doesn't grow while it waits, but for reminders:
    it asks anew after 60 s, 11 min and 71 min, and then once an hour, in case the broker was ended by hand
    and everybody's place with it. Each is 14 events: 28 in the first hour, and 14 in each later one.
    """

    def __init__(self, line: Line, broker: Broker, acquire: Acquire, *, fast: bool) -> None:
        self.lease = BrokeredLease(acquire.id, acquire.ttl)
        self.bell = Bell()
        """Rung by news of it; whoever keeps the lease takes it over with its timer."""
        self.heard = False
        """The broker has answered."""
        self._line = line
        self._broker = broker
        self._acquire = replace(acquire, inbox=line.inbox)
        self._fast = fast
        self._calling: Calling | None = None
        self._left = False

    @property
    def settled(self) -> bool:
        """There is no more to wait for."""
        return self.lease.granted or self.lease.refusal is not None or self.trouble is not None

    @property
    def trouble(self) -> Exception | None:
        """What kept the question from its broker; once that was heard, a reminder's doesn't matter."""
        return None if self.heard or self._calling is None else self._calling.trouble

    @property
    def has_started_it(self) -> bool:
        """No broker was there, so its queue is ours."""
        return self._calling is not None and self._calling.has_started

    async def settle(self, until: float | None) -> None:
        """Wait for what comes of it, until then at the latest; whoever is cancelled meanwhile has left."""
        self._line.listen(self.lease.mark, self._pushed)
        try:
            await self._be_served(until)
        except (Exception, asyncio.CancelledError):
            self._line.refuse_if_put_away()
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
            await self.bell.wait(min(again, end), f"waits for {self._broker.named}")

    def _end(self, began: float, until: float | None) -> float:
        """When to give up, as things stand."""
        if self.heard:
            return inf if until is None else until
        return began + SERVED if until is None else max(until, began + ANSWERED)

    def _ask(self) -> None:
        self._calling = self._line.send(
            Calling(
                self._broker,
                [self._acquire],
                self._answer,
                self.bell,
                wanted=lambda: not self._left,
                starts=True,
                fast=self._fast,
            )
        )

    def _remind(self) -> None:
        """The same question once more: it keeps the place, or takes one if that is gone."""
        if not self.heard:
            workflow.logger.warning(
                "the broker of %s has not answered: does a worker serve the task queue %s? "
                "`dibs temporal worker` does",
                self._broker.named,
                self._broker.queue,
            )
        if self._calling is None or self._calling.over:
            self._ask()

    def _answer(self, replies: Sequence[Reply], sent: float) -> None:
        self.heard = True
        self.lease.hear(replies[0], sent)

    def _pushed(self, push: Notification) -> None:
        self.lease.hear_push(push, workflow.time())
        self.bell.ring()

    async def leave(self) -> None:
        """Give it up, also what was granted meanwhile.

        The question is on its way, or never will be, before the release is: it can't come after it.
        """
        await self._leave(Calling(self._broker, [self._release]))

    async def leave_and_ask(self) -> Status | None:
        """Give it up, and tell who held and who waited; None if there is no answer."""
        found: list[Status] = []

        def take(replies: Sequence[Reply], sent: float) -> None:
            found.extend(reply for reply in replies if isinstance(reply, Status))

        last = Calling(self._broker, [Inspect(self._broker.key), self._release], take)
        await self._leave(last)
        if self.heard:
            until = workflow.time() + LAST_WORDS
            await last.wait_settled(until, f"asks who holds {self._broker.named}")
            last.bell.close()
        return found[0] if found else None

    async def _leave(self, last: Calling) -> None:
        self._left = True
        if self._calling is not None:
            await self._calling.wait_over()
        await self._line.send(last).wait_over()
        self.forget()

    def forget(self) -> None:
        """Listen no more: it is over at the broker as well."""
        self.bell.close()
        self._line.leave(self.lease.mark)

    @property
    def _release(self) -> Release:
        return Release(self._broker.key, self._acquire.id, tombstone=TOMBSTONE_TTL)


def _reminders(start: float) -> Iterator[float]:
    """When to ask again."""
    reminders = accumulate(chain(REMINDERS, repeat(REMINDERS[-1])), initial=start)
    next(reminders)
    return reminders


async def acquire_fair(pool: Pool, terms: Terms) -> FairPermit:
    """Units of a resource, in the order of priority and arrival.

    Raises `AcquireTimedOut` after `terms.wait`, `AlreadyHeld` where this task would wait for itself,
    `NotServed` where the broker isn't served, `Misused` for more units than there are. A cancellation
    while waiting gives the place back before it is raised.
    """
    line, broker = Line.of_this_run(), _broker(pool)
    _check(pool, terms, broker, line)
    began = workflow.time()
    until = None if terms.wait is None else began + terms.wait
    while True:
        place = QueueEntry(line, broker, _acquire(broker, pool, terms), fast=_fast(pool))
        await place.settle(until)
        lease = place.lease
        if lease.granted and not lease.lost(workflow.time()):
            return _permit(pool, line, broker, place, terms)
        if lease.granted or isinstance(lease.refusal, Gone):
            # this run's worker was away for longer than the grant stood: it has to queue again
            await to_its_end(place.leave())
            continue
        raise await _failure(place, broker, terms, began)


async def _failure(place: QueueEntry, broker: Broker, terms: Terms, began: float) -> DibsError:
    """Why there is no permit; nothing is left of the place."""
    refused = place.lease.refusal
    if isinstance(refused, Refused | Failed):
        place.forget()
        return refusal(broker, terms.units, refused)
    if place.trouble is not None:
        place.forget()
        return unreachable(broker, place.trouble)
    status = await to_its_end(place.leave_and_ask())
    waited = workflow.time() - began
    if not place.heard:
        return unanswered(broker, waited, was_there=not place.has_started_it)
    return timed_out(broker, place.lease.mark, waited, status)


async def reattach_fair(pool: Pool, handoff: Handoff) -> FairPermit:
    """The permit that an earlier run has detached. Raises `PermitLost` if it has ended meanwhile."""
    line, broker = Line.of_this_run(), _broker(pool)
    lease = _lease_of(handoff)
    permit = FairPermit(
        line,
        broker,
        lease,
        Bell(),
        resource=pool.resource,
        fast=_fast(pool),
        quarantine=pool.quarantine,
        until=handoff.until,
        renews=handoff.renews,
        acquired_at=handoff.acquired_at,
    )
    await permit.take_up()
    return permit


def _lease_of(handoff: Handoff) -> BrokeredLease:
    """As the run before knew it. Raises `Misused` for what no fair permit has left."""
    with checked():
        try:
            lease_id, deadline = handoff.more["lease"], handoff.more["deadline"]
            return BrokeredLease.taken_over(
                str(lease_id),
                handoff.ttl,
                token=int(handoff.token or 0),
                slots=tuple(int(slot) for slot in handoff.slots),
                deadline=float(deadline),
            )
        except KeyError as missing:
            raise ValueError(f"this handoff has no {missing}: it is of no fair permit") from missing


def _broker(pool: Pool) -> Broker:
    with checked():
        key = key_of("lock" if pool.kind == "lock" else "semaphore", pool.resource)
    return Broker(key, pool.task_queue or QUEUE)


def _fast(pool: Pool) -> bool:
    return pool.on_holder_close == "fast"


def _check(pool: Pool, terms: Terms, broker: Broker, line: Line) -> None:
    if terms.units > pool.capacity:
        raise Misused(f"units is {terms.units}, and {pool!r} has no more than its capacity")
    held = line.held_here(broker.key)
    if terms.wait != 0 and held + terms.units > pool.capacity:
        raise would_wait_for_itself(broker, held, pool.capacity)


def _acquire(broker: Broker, pool: Pool, terms: Terms) -> Acquire:
    info = workflow.info()
    return Acquire(
        broker.key,
        _new_id(),
        f"{info.workflow_id}/{info.run_id}/{info.workflow_type}",
        terms.ttl,
        units=terms.units,
        capacity=pool.capacity,
        queue=terms.wait != 0,
        waiter_ttl=AGES if terms.wait is None else terms.wait + terms.ttl,
        priority=terms.priority,
        note=terms.note,
        lock_delay=_lock_delay(pool.quarantine, terms),
    )


def _lock_delay(quarantine: float, terms: Terms) -> float:
    """What a holder that ended without a word has left over of its lease counts for the quarantine."""
    left = terms.ttl - pause(terms.ttl) if terms.auto_renew else 0.0
    return max(quarantine - left, 0.0)


def _new_id() -> str:
    """Of random bits that a replay draws again."""
    return urlsafe_b64encode(workflow.random().randbytes(18)).decode()


def _permit(pool: Pool, line: Line, broker: Broker, place: QueueEntry, terms: Terms) -> FairPermit:
    return FairPermit(
        line,
        broker,
        place.lease,
        place.bell,
        resource=pool.resource,
        fast=_fast(pool),
        quarantine=pool.quarantine,
        until=workflow.time() + terms.max_hold,
        renews=terms.auto_renew,
    )


def refusal(broker: Broker, units: int, reply: Refused | Failed) -> DibsError:
    """The error for units that are not to be had now, or ever."""
    if isinstance(reply, Failed):
        kind = Misused if reply.reason == "invalid" else NotServed
        return kind(f"{format_key(broker.key)}: {reply.detail}", key=broker.key)
    if reply.reason == "too_large":
        return Misused(
            f"cannot acquire {units} units of {format_key(broker.key)}: its last declared capacity "
            "is smaller",
            key=broker.key,
        )
    told = describe_holders(broker.key, reply.holders, None)
    if reply.reason == "queue_full":
        told += "; and no more can wait for it"
    return AcquireTimedOut(
        told, key=broker.key, holders=reply.holders, retry_after=reply.recheck_in
    )


def timed_out(broker: Broker, lease: str, waited: float, status: Status | None) -> AcquireTimedOut:
    """The error for who has waited for so long; `status` is how things stood then."""
    holders = tuple(each for each in _holders(status) if each.lease != lease)
    ahead = _ahead(lease, status)
    return AcquireTimedOut(
        f"{describe_holders(broker.key, holders[:8], ahead)}; gave up after {format_duration(waited)}",
        key=broker.key,
        holders=holders[:8],
        position=ahead,
        retry_after=min((holder.expires_in for holder in holders), default=None),
    )


def _holders(status: Status | None) -> tuple[Holder, ...]:
    return status.holders if status is not None else ()


def _ahead(lease: str, status: Status | None) -> int | None:
    """How many came before it; None where that isn't known, as far back in a long queue."""
    marks = [waiter.lease for waiter in status.waiters] if status is not None else []
    return marks.index(lease) if lease in marks else None


def unanswered(broker: Broker, waited: float, *, was_there: bool) -> NotServed:
    """The error for a broker that has not said a word. Only the one who starts it knows its queue."""
    silent = format_duration(waited)
    told = f"{broker.id}, which keeps {format_key(broker.key)}, has not answered for {silent}: "
    end = terminate(broker.id)
    if was_there:
        told += (
            f"it has been there before, and {unserved(broker.queue, ', or whichever it is on')} (`temporal "
            f"workflow describe` tells): {serve(broker.queue)}; or, if nobody holds anything there, {end} "
            "has it started anew"
        )
    else:
        told += (
            f"{unserved(broker.queue, ', on which it has just been started')}: {serve(broker.queue)}; or "
            f"name the queue that has one, by task_queue= or TEMPORAL_TASK_QUEUE, after {end}: as long as it "
            "is there all go to it"
        )
    return NotServed(told, key=broker.key)


def unreachable(broker: Broker, trouble: Exception) -> NotServed:
    """The error for a broker that the server lets nobody speak to."""
    return NotServed(
        f"the broker of {format_key(broker.key)} can't be asked: {trouble}", key=broker.key
    )


def would_wait_for_itself(broker: Broker, held: int, capacity: int) -> AlreadyHeld:
    """The error for a task that holds what it asks for."""
    return AlreadyHeld(
        f"this task holds {held} of {capacity} units of {format_key(broker.key)} itself, so it would wait "
        "for ever: pass the permit on to what needs it, or leave its block before",
        key=broker.key,
    )
