"""Acquiring through a broker, which keeps the order: `Semaphore(..., fair=True)`."""

from base64 import urlsafe_b64encode

from temporalio import workflow

from dibs.backends.temporal.protocol.bounds import AGES
from dibs.backends.temporal.protocol.ids import QUEUE
from dibs.core.names import key_of
from dibs.errors import DibsError
from dibs.model import Acquire, Failed, Gone, Refused
from dibs.temporal.failures import Misused, checked
from dibs.temporal.fair.bell import Bell
from dibs.temporal.fair.delivery import Broker
from dibs.temporal.fair.lease import BrokeredLease, pause
from dibs.temporal.fair.line import Line
from dibs.temporal.fair.permit import FairPermit
from dibs.temporal.fair.place import Place
from dibs.temporal.fair.refusals import (
    refusal,
    timed_out,
    unanswered,
    unreachable,
    would_wait_for_itself,
)
from dibs.temporal.permits.ending import to_its_end
from dibs.temporal.permits.handoff import Handoff
from dibs.temporal.permits.pool import Pool
from dibs.temporal.permits.terms import Terms


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
        place = Place(line, broker, _acquire(broker, pool, terms), fast=_fast(pool))
        await place.settle(until)
        lease = place.lease
        if lease.granted and not lease.lost(workflow.time()):
            return _permit(pool, line, broker, place, terms)
        if lease.granted or isinstance(lease.refusal, Gone):
            # this run's worker was away for longer than the grant stood: it has to queue again
            await to_its_end(place.leave())
            continue
        raise await _failure(place, broker, terms, began)


async def _failure(place: Place, broker: Broker, terms: Terms, began: float) -> DibsError:
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
        patience=AGES if terms.wait is None else terms.wait + terms.ttl,
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


def _permit(pool: Pool, line: Line, broker: Broker, place: Place, terms: Terms) -> FairPermit:
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
