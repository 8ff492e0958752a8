"""The ledger: one pure state machine that every store applies, and that carries every primitive.

`apply(book, command, now, stamp)` decides everything about one key. `now` is the time by which entries
end, on whatever clock the book's view uses; `stamp` is the store's wall clock in microseconds and only
seeds fencing tokens and ages. Nothing here waits, reads a clock, draws a random number or does I/O.

The rules, which the model check in `tests/model` explores exhaustively:

* At most `capacity` units are taken. The newest capacity that a *new* id declared counts. Holds that were
  granted under another capacity stay.
* An id is used once. It has at most one entry: a hold, a waiter or a tombstone. A renewal never revives an
  id whose hold has ended.
* No lease is shortened, except by `Revoke(now=True)`. A holder can rely on the ttl it was given, from the
  moment it *sent* the command.
* The tokens of a key strictly increase.
* The queue is strict: nobody overtakes a waiter that sends its heartbeats, whatever would fit behind it.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from math import isfinite
from typing import Any, Literal

from dibs.core.book import Book, Entry, Hold, QueueEntry, Tombstone, first_release
from dibs.core.codec import flaw_of
from dibs.core.names import fingerprint
from dibs.core.timing import BATCH_STEPS, LEAST_STEPS, MAX_CLAIM_TIMEOUT, STEPS, TOMBSTONE_TTL
from dibs.core.transition import Transition
from dibs.model import (
    Acquire,
    Command,
    Failed,
    Gone,
    Granted,
    Holder,
    Inspect,
    Lost,
    Notification,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Resize,
    Revoke,
    Revoked,
    Status,
    Unknown,
    Waiter,
)

HOLDERS_NAMED = 8
"""How many holders a refusal lists."""
HOLDERS_SHOWN = 100
"""How many holders a `Status` lists."""
WAITERS_SHOWN = 100


class StepBudget:
    """The steps that the commands of one batch have left. Make a new one for each batch."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps: int = BATCH_STEPS


def apply(
    book: Book, command: Command, now: float, stamp: int, batch: StepBudget | None = None
) -> tuple[Reply, list[Notification]]:
    """Apply one command to the book of its key. Returns the reply and the notifications to send."""
    flaw = flaw_of(command)
    if flaw is not None:
        return Failed("invalid", flaw), []
    transition = Transition(book, command.key, now, stamp, getattr(command, "id", None))
    allowed = STEPS if batch is None else max(min(batch.steps, STEPS), LEAST_STEPS)
    transition.steps = allowed
    first = book.first()
    transition.settle()
    reply = _RULES[type(command)](transition, command)
    transition.settle()
    transition.notify_new_head(first)
    if batch is not None:
        batch.steps -= allowed - transition.steps
    return reply, transition.notifications


# ---- Acquire --------------------------------------------------------------------------------------


def _acquire(transition: Transition, command: Acquire) -> Reply:
    entry = transition.book.get(command.id)
    if entry is not None:
        return _acquire_again(transition, command, entry)
    if command.units > command.capacity:
        return Refused("too_large")
    transition.book.capacity = command.capacity
    if transition.book.waiting:
        transition.settle()  # a larger capacity may grant waiters first
    if transition.fits(command.units, queue=command.queue):
        return _grant(transition, command)
    if not command.queue:
        return _refuse(transition)
    limit = transition.book.queue_limit
    if limit is not None and transition.book.waiting >= limit:
        return _refuse(transition, "queue_full")
    return transition.enqueue(_new_entry(transition, command))


def _acquire_again(transition: Transition, command: Acquire, entry: Entry) -> Reply:
    """A repeated Acquire renews a hold, counts as a waiter's heartbeat, and never revives an ended id."""
    if isinstance(entry, Tombstone):
        return Refused("too_large") if entry.reason == "too_large" else Gone()
    if isinstance(entry, Hold) and entry.state in ("retained", "revoked"):
        return Gone()
    entry.inbox = command.inbox  # its owner may have reconnected
    if isinstance(entry, QueueEntry):
        return transition.heartbeat(entry, command.ttl)
    return transition.claim(entry, command.ttl)


def _grant(transition: Transition, command: Acquire) -> Granted:
    token = transition.take_token(command.floor)
    slots = transition.free_slots(command.units)
    transition.book.put(
        Hold(
            id=command.id,
            owner=command.owner,
            token=token,
            units=command.units,
            slots=slots,
            ttl=command.ttl,
            expires=transition.now + command.ttl,
            lock_delay=command.lock_delay,
            since=transition.stamp,
            note=command.note,
            inbox=command.inbox,
            address=command.address,
            trace=command.trace,
        )
    )
    return Granted(token, slots, command.ttl)


def _new_entry(transition: Transition, command: Acquire) -> QueueEntry:
    transition.book.arrivals += 1
    return QueueEntry(
        id=command.id,
        owner=command.owner,
        units=command.units,
        priority=command.priority,
        arrival=transition.book.arrivals,
        grant_ttl=command.ttl,
        ttl=command.waiter_ttl,
        expires=transition.now + command.waiter_ttl,
        floor=command.floor,
        lock_delay=command.lock_delay,
        since=transition.stamp,
        note=command.note,
        inbox=command.inbox,
        address=command.address,
        trace=command.trace,
    )


def _refuse(transition: Transition, reason: Literal["held", "queue_full"] = "held") -> Refused:
    """Refuse, with the holders and the seconds until time can free units (0 if the steps ran out).

    The reason is `closed` if the units of all listed holders are retained by nobody.
    """
    holds = transition.book.first_to_end(HOLDERS_NAMED)
    closed = reason == "held" and holds and all(hold.state == "retained" for hold in holds)
    again = first_release(transition.book) - transition.now if transition.steps else 0.0
    return Refused(
        "closed" if closed else reason,
        holders_of(transition, holds),
        max(again, 0.0) if isfinite(again) else MAX_CLAIM_TIMEOUT,
    )


# ---- Renew, Release -------------------------------------------------------------------------------


def _renew(transition: Transition, command: Renew) -> Reply:
    entry = transition.book.get(command.id)
    if command.inbox and isinstance(entry, Hold | QueueEntry):
        entry.inbox = command.inbox
    match entry:
        case Hold(state="held"):
            return Renewed(transition.extend(entry, command.ttl))
        case Hold(state="unclaimed"):
            return transition.claim(entry, command.ttl)
        case QueueEntry():
            reply = transition.heartbeat(entry, command.ttl)
            return reply if isinstance(reply, Granted | Queued) else Lost("expired", "too large")
        case Hold(state="revoked"):
            transition.book.put(entry)  # its inbox may be a new one
            return Lost("revoked", entry.detail)
        case Tombstone(reason="revoked"):
            return Lost("revoked", entry.detail)
        case _:
            return Lost()


def _release(transition: Transition, command: Release) -> Reply:
    entry = transition.book.get(command.id)
    match entry:
        case Hold(state="retained"):
            if command.tombstone > entry.tombstone:
                entry.tombstone = command.tombstone
                transition.book.put(entry)
            return Released()  # a repeat never extends it
        case Hold() if command.retain:
            transition.retain(entry, command.retain, command.tombstone)
            return Released()
        case Hold() | QueueEntry():
            if command.tombstone:
                transition.set_tombstone(command.id, command.tombstone)
            else:
                transition.book.remove(entry)
            return Released()
        case None if command.tombstone:
            transition.set_tombstone(command.id, command.tombstone)
        case Tombstone() if command.tombstone:
            # its Acquire may have been sent again since
            transition.set_tombstone(
                entry.id, transition.left(entry, command.tombstone), entry.reason, entry.detail
            )
    return Unknown()


# ---- Resize ---------------------------------------------------------------------------------------


def _resize(transition: Transition, command: Resize) -> Reply:
    hold = transition.book.get(command.id)
    if not isinstance(hold, Hold) or hold.state == "retained":
        return Lost()
    if hold.state == "revoked":
        return Lost("revoked", hold.detail)
    # Its expiry stays. Without a store clock that is this observer's estimate, so the beat must rise and all
    # other observers start again.
    hold.state = "held"  # a command from its owner claims it
    left = transition.extend(hold, 0.0)
    if command.seq > hold.seq:
        hold.seq = command.seq  # also if refused: a late copy must not succeed
        _set_units(transition, hold, command.units)
    if command.seq == hold.seq and command.units != hold.units:
        return _refuse_growth(transition, hold, command.units)
    return Granted(hold.token, hold.slots, left)


def _set_units(transition: Transition, hold: Hold, units: int) -> None:
    """Growing ignores the queue. Otherwise a holder could wait for waiters that wait for it."""
    book = transition.book
    grows = units > hold.units
    if grows and book.used - hold.units + units > book.capacity:
        return book.put(hold)
    slots = transition.free_slots(units, hold.slots) if grows else hold.slots[:units]
    book.remove(hold)
    if grows:
        hold.token = transition.take_token(0)  # more units are a new grant
    hold.units = units
    hold.slots = slots
    book.put(hold)


def _refuse_growth(transition: Transition, hold: Hold, units: int) -> Refused:
    if units > transition.book.capacity:
        return Refused("too_large")
    first = transition.book.first_to_end(HOLDERS_NAMED + 1)
    others = [other for other in first if other.id != hold.id]
    again = (
        min((transition.book.expires_at(other) for other in others), default=transition.now)
        - transition.now
    )
    return Refused("held", holders_of(transition, others[:HOLDERS_NAMED]), max(again, 0.0))


# ---- Revoke, Inspect ------------------------------------------------------------------------------


def _revoke(transition: Transition, command: Revoke) -> Revoked:
    hit = [
        hold
        for hold in transition.book.holds()
        if hold.state != "retained" and command.lease in (None, fingerprint(hold.id))
    ]
    ends_in = 0.0
    for hold in hit:
        transition.notify_revoked(hold, command.reason)
        if command.now:
            transition.set_tombstone(hold.id, TOMBSTONE_TTL, "revoked", command.reason)
        else:
            hold.state = "revoked"
            hold.detail = command.reason
            transition.book.put(hold)
            ends_in = max(ends_in, transition.book.expires_at(hold) - transition.now)
    return Revoked(len(hit), ends_in)


def _inspect(transition: Transition, command: Inspect) -> Status:
    book = transition.book
    return Status(
        command.key,
        book.capacity,
        holders_of(
            transition, sorted(book.first_to_end(HOLDERS_SHOWN), key=lambda hold: hold.token)
        ),
        tuple(waiter_of(transition, waiter) for waiter in islice(book.queue(), WAITERS_SHOWN)),
        book.waiting,
        book.last,
        book.holding,
        book.used,
    )


_RULES: dict[type, Callable[[Transition, Any], Reply]] = {
    Acquire: _acquire,
    Renew: _renew,
    Release: _release,
    Resize: _resize,
    Inspect: _inspect,
    Revoke: _revoke,
}


def holders_of(transition: Transition, holds: Iterable[Hold]) -> tuple[Holder, ...]:
    """Holds as other clients see them, without ids."""
    return tuple(
        Holder(
            lease="" if hold.state == "retained" else fingerprint(hold.id),
            owner=hold.owner,
            token=hold.token,
            units=hold.units,
            slots=hold.slots,
            held_for=_age(transition, hold.since),
            expires_in=max(transition.book.expires_at(hold) - transition.now, 0.0),
            note=hold.note,
            state=hold.state,
            address=hold.address,
            trace=hold.trace,
        )
        for hold in holds
    )


def waiter_of(transition: Transition, waiter: QueueEntry) -> Waiter:
    """A waiter as other clients see it, without its id."""
    return Waiter(
        lease=fingerprint(waiter.id),
        owner=waiter.owner,
        units=waiter.units,
        priority=waiter.priority,
        waited=_age(transition, waiter.since),
        note=waiter.note,
        address=waiter.address,
        trace=waiter.trace,
    )


def _age(transition: Transition, since: int) -> float:
    return max(transition.stamp - since, 0) / 1e6
