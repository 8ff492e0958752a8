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
from math import inf, isfinite
from typing import Any, Literal

from dibs.core.book import Book, Entry, Hold, QueueEntry, Tombstone, first_release
from dibs.core.names import fingerprint
from dibs.core.timing import BATCH_STEPS, LEAST_STEPS, MAX_CLAIM_TIMEOUT, STEPS, TOMBSTONE_TTL
from dibs.core.transition import Transition
from dibs.model import (
    MANY,
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

LAST_TOKEN = 2**53
"""Every token is smaller, so that a double holds it exactly."""

_TOO_MANY = f"units and capacity must be at most {MANY}"

HOLDERS_NAMED = 8
"""How many holders a refusal lists."""
HOLDERS_SHOWN = 100
"""How many holders a `Status` lists."""
WAITERS_SHOWN = 100


class Batch:
    """The steps that the commands of one batch have left. Make a new one for each batch."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = BATCH_STEPS


def apply(
    book: Book, command: Command, now: float, stamp: int, batch: Batch | None = None
) -> tuple[Reply, list[Notification]]:
    """Apply one command to the book of its key. Returns the reply and the notifications to send."""
    flaw = flaw_of(command)
    if flaw is not None:
        return Failed("invalid", flaw), []
    turn = Transition(book, command.key, now, stamp, getattr(command, "id", None))
    allowed = STEPS if batch is None else max(min(batch.steps, STEPS), LEAST_STEPS)
    turn.steps = allowed
    first = book.first()
    turn.settle()
    reply = _RULES[type(command)](turn, command)
    turn.settle()
    turn.notify_new_head(first)
    if batch is not None:
        batch.steps -= allowed - turn.steps
    return reply, turn.notifications


def flaw_of(command: Command) -> str | None:
    """Return what is wrong with a command, or None. Our own clients send no such command."""
    if isinstance(command, Acquire):
        if type(command.units) is not int or type(command.priority) is not int:
            return "units and priority must be whole numbers"
        if not (0 < command.ttl < inf and 0 < command.waiter_ttl < inf):
            return "ttl and waiter_ttl must be positive"
        if command.units < 1 or not 0 <= command.floor < LAST_TOKEN:
            return "units must be at least 1, floor at least 0 and less than 2^53"
        if not 0 <= command.lock_delay < inf:
            return "lock_delay must be finite and at least 0"
        if command.units > MANY or command.capacity > MANY:
            return _TOO_MANY
    elif isinstance(command, Renew):
        if not 0 < command.ttl < inf:
            return "ttl must be positive"
    elif isinstance(command, Resize):
        if command.units < 1:
            return "units must be at least 1"
        if command.units > MANY:
            return _TOO_MANY
    elif isinstance(command, Release) and not (
        0 <= command.retain < inf and 0 <= command.tombstone < inf
    ):
        return "retain and tombstone must be finite and at least 0"
    return None


# ---- Acquire --------------------------------------------------------------------------------------


def _acquire(turn: Transition, command: Acquire) -> Reply:
    entry = turn.book.get(command.id)
    if entry is not None:
        return _acquire_again(turn, command, entry)
    if command.units > command.capacity:
        return Refused("too_large")
    turn.book.capacity = command.capacity
    if turn.book.waiting:
        turn.settle()  # a larger capacity may grant waiters first
    if turn.fits(command.units, queue=command.queue):
        return _grant(turn, command)
    if not command.queue:
        return _refuse(turn)
    limit = turn.book.queue_limit
    if limit is not None and turn.book.waiting >= limit:
        return _refuse(turn, "queue_full")
    return turn.enqueue(_new_place(turn, command))


def _acquire_again(turn: Transition, command: Acquire, entry: Entry) -> Reply:
    """A repeated Acquire renews a hold, counts as a waiter's heartbeat, and never revives an ended id."""
    if isinstance(entry, Tombstone):
        return Refused("too_large") if entry.reason == "too_large" else Gone()
    if isinstance(entry, Hold) and entry.state in ("kept", "revoked"):
        return Gone()
    entry.inbox = command.inbox  # its owner may have reconnected
    if isinstance(entry, QueueEntry):
        return turn.heartbeat(entry, command.ttl)
    return turn.claim(entry, command.ttl)


def _grant(turn: Transition, command: Acquire) -> Granted:
    token = turn.take_token(command.floor)
    slots = turn.free_slots(command.units)
    turn.book.put(
        Hold(
            id=command.id,
            owner=command.owner,
            token=token,
            units=command.units,
            slots=slots,
            ttl=command.ttl,
            expires=turn.now + command.ttl,
            lock_delay=command.lock_delay,
            since=turn.stamp,
            note=command.note,
            inbox=command.inbox,
            address=command.address,
            trace=command.trace,
        )
    )
    return Granted(token, slots, command.ttl)


def _new_place(turn: Transition, command: Acquire) -> QueueEntry:
    turn.book.arrivals += 1
    return QueueEntry(
        id=command.id,
        owner=command.owner,
        units=command.units,
        priority=command.priority,
        arrival=turn.book.arrivals,
        grant_ttl=command.ttl,
        ttl=command.waiter_ttl,
        expires=turn.now + command.waiter_ttl,
        floor=command.floor,
        lock_delay=command.lock_delay,
        since=turn.stamp,
        note=command.note,
        inbox=command.inbox,
        address=command.address,
        trace=command.trace,
    )


def _refuse(turn: Transition, reason: Literal["held", "queue_full"] = "held") -> Refused:
    """Refuse, with the holders and the seconds until time can free units (0 if the steps ran out).

    The reason is `closed` if the units of all listed holders are retained by nobody.
    """
    holds = turn.book.first_to_end(HOLDERS_NAMED)
    closed = reason == "held" and holds and all(hold.state == "kept" for hold in holds)
    again = first_release(turn.book) - turn.now if turn.steps else 0.0
    return Refused(
        "closed" if closed else reason,
        holders_of(turn, holds),
        max(again, 0.0) if isfinite(again) else MAX_CLAIM_TIMEOUT,
    )


# ---- Renew, Release -------------------------------------------------------------------------------


def _renew(turn: Transition, command: Renew) -> Reply:
    entry = turn.book.get(command.id)
    if command.inbox and isinstance(entry, Hold | QueueEntry):
        entry.inbox = command.inbox
    match entry:
        case Hold(state="held"):
            return Renewed(turn.extend(entry, command.ttl))
        case Hold(state="unclaimed"):
            return turn.claim(entry, command.ttl)
        case QueueEntry():
            reply = turn.heartbeat(entry, command.ttl)
            return reply if isinstance(reply, Granted | Queued) else Lost("expired", "too large")
        case Hold(state="revoked"):
            turn.book.put(entry)  # its inbox may be a new one
            return Lost("revoked", entry.detail)
        case Tombstone(reason="revoked"):
            return Lost("revoked", entry.detail)
        case _:
            return Lost()


def _release(turn: Transition, command: Release) -> Reply:
    entry = turn.book.get(command.id)
    match entry:
        case Hold(state="kept"):
            if command.tombstone > entry.tombstone:
                entry.tombstone = command.tombstone
                turn.book.put(entry)
            return Released()  # a repeat never extends it
        case Hold() if command.retain:
            turn.retain(entry, command.retain, command.tombstone)
            return Released()
        case Hold() | QueueEntry():
            if command.tombstone:
                turn.set_tombstone(command.id, command.tombstone)
            else:
                turn.book.remove(entry)
            return Released()
        case None if command.tombstone:
            turn.set_tombstone(command.id, command.tombstone)
        case Tombstone() if command.tombstone:
            # its Acquire may have been sent again since
            turn.set_tombstone(
                entry.id, turn.left(entry, command.tombstone), entry.reason, entry.detail
            )
    return Unknown()


# ---- Resize ---------------------------------------------------------------------------------------


def _resize(turn: Transition, command: Resize) -> Reply:
    hold = turn.book.get(command.id)
    if not isinstance(hold, Hold) or hold.state == "kept":
        return Lost()
    if hold.state == "revoked":
        return Lost("revoked", hold.detail)
    # Its expiry stays. Without a store clock that is this observer's estimate, so the beat must rise and all
    # other observers start again.
    hold.state = "held"  # a command from its owner claims it
    left = turn.extend(hold, 0.0)
    if command.seq > hold.seq:
        hold.seq = command.seq  # also if refused: a late copy must not succeed
        _set_units(turn, hold, command.units)
    if command.seq == hold.seq and command.units != hold.units:
        return _refuse_growth(turn, hold, command.units)
    return Granted(hold.token, hold.slots, left)


def _set_units(turn: Transition, hold: Hold, units: int) -> None:
    """Growing ignores the queue. Otherwise a holder could wait for waiters that wait for it."""
    book = turn.book
    grows = units > hold.units
    if grows and book.used - hold.units + units > book.capacity:
        return book.put(hold)
    slots = turn.free_slots(units, hold.slots) if grows else hold.slots[:units]
    book.remove(hold)
    if grows:
        hold.token = turn.take_token(0)  # more units are a new grant
    hold.units = units
    hold.slots = slots
    book.put(hold)


def _refuse_growth(turn: Transition, hold: Hold, units: int) -> Refused:
    if units > turn.book.capacity:
        return Refused("too_large")
    first = turn.book.first_to_end(HOLDERS_NAMED + 1)
    others = [other for other in first if other.id != hold.id]
    again = min((turn.book.expires_at(other) for other in others), default=turn.now) - turn.now
    return Refused("held", holders_of(turn, others[:HOLDERS_NAMED]), max(again, 0.0))


# ---- Revoke, Inspect ------------------------------------------------------------------------------


def _revoke(turn: Transition, command: Revoke) -> Revoked:
    hit = [
        hold
        for hold in turn.book.holds()
        if hold.state != "kept" and command.lease in (None, fingerprint(hold.id))
    ]
    ends_in = 0.0
    for hold in hit:
        turn.notify_revoked(hold, command.reason)
        if command.now:
            turn.set_tombstone(hold.id, TOMBSTONE_TTL, "revoked", command.reason)
        else:
            hold.state = "revoked"
            hold.detail = command.reason
            turn.book.put(hold)
            ends_in = max(ends_in, turn.book.expires_at(hold) - turn.now)
    return Revoked(len(hit), ends_in)


def _inspect(turn: Transition, command: Inspect) -> Status:
    book = turn.book
    return Status(
        command.key,
        book.capacity,
        holders_of(turn, sorted(book.first_to_end(HOLDERS_SHOWN), key=lambda hold: hold.token)),
        tuple(waiter_of(turn, place) for place in islice(book.queue(), WAITERS_SHOWN)),
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


def holders_of(turn: Transition, holds: Iterable[Hold]) -> tuple[Holder, ...]:
    """Holds as other clients see them, without ids."""
    return tuple(
        Holder(
            lease="" if hold.state == "kept" else fingerprint(hold.id),
            owner=hold.owner,
            token=hold.token,
            units=hold.units,
            slots=hold.slots,
            held_for=_age(turn, hold.since),
            expires_in=max(turn.book.expires_at(hold) - turn.now, 0.0),
            note=hold.note,
            state=hold.state,
            address=hold.address,
            trace=hold.trace,
        )
        for hold in holds
    )


def waiter_of(turn: Transition, place: QueueEntry) -> Waiter:
    """A waiter as other clients see it, without its id."""
    return Waiter(
        lease=fingerprint(place.id),
        owner=place.owner,
        units=place.units,
        priority=place.priority,
        waited=_age(turn, place.since),
        note=place.note,
        address=place.address,
        trace=place.trace,
    )


def _age(turn: Transition, since: int) -> float:
    return max(turn.stamp - since, 0) / 1e6
