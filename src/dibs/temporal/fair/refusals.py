"""What an acquire at a broker raises that ends without a grant: who is in the way, and what to do."""

from dibs.backends.temporal.protocol.unserved import serve, terminate, unserved
from dibs.errors import DibsError
from dibs.model import Failed, Holder, Refused, Status
from dibs.primitives.telling import contention, key_shown, span
from dibs.temporal.failures import AcquireTimedOut, AlreadyHeld, Misused, NotServed
from dibs.temporal.fair.delivery import Broker


def refusal(broker: Broker, units: int, reply: Refused | Failed) -> DibsError:
    """The error for units that are not to be had now, or ever."""
    if isinstance(reply, Failed):
        kind = Misused if reply.reason == "invalid" else NotServed
        return kind(f"{key_shown(broker.key)}: {reply.detail}", key=broker.key)
    if reply.reason == "too_large":
        return Misused(
            f"{units} units of {key_shown(broker.key)} can't be had: the capacity it was last declared "
            "with is smaller",
            key=broker.key,
        )
    told = contention(broker.key, reply.holders, None)
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
        f"{contention(broker.key, holders[:8], ahead)}; gave up after {span(waited)}",
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
    told = (
        f"{broker.id}, which keeps {key_shown(broker.key)}, has not answered for {span(waited)}: "
    )
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
        f"the broker of {key_shown(broker.key)} can't be asked: {trouble}", key=broker.key
    )


def would_wait_for_itself(broker: Broker, held: int, capacity: int) -> AlreadyHeld:
    """The error for a task that holds what it asks for."""
    return AlreadyHeld(
        f"this task holds {held} of {capacity} units of {key_shown(broker.key)} itself, so it would wait "
        "for ever: pass the permit on to what needs it, or leave its block before",
        key=broker.key,
    )
