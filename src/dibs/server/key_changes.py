"""The states of all keys in use, and the events that follow from their changes.

Two sources change them: commands with their replies (`applied`), and looks at the store (`observe`, and scans
of all keys). A change that one of them has reported is not reported again for the other.
"""

from collections.abc import Callable, Mapping
from math import inf

from dibs.core.names import fingerprint
from dibs.locks.requests import MIN_WAITER_TTL
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Lost,
    Notification,
    Queued,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Resize,
    Revoke,
    Revoked,
    Status,
)
from dibs.server.key_state import UNSEEN, KeyState, SeenHold, SeenWaiter, known_slots
from dibs.server.lock_events import EventType, LockEvent

PUNCTUAL = 0.25
"""Seconds before its expiry from which a hold that disappears counts as expired, not as released."""

MAX_KEYS = 250_000
"""Keys in use that are remembered; another one replaces the oldest."""

MAX_IDLE = 16_384
"""Keys out of use that are remembered."""

RENEWED = 0.05
"""Seconds by which the end of a lease moves at least if it was renewed, besides what a look takes."""

LATE = 1.0
"""Seconds after its end for which a hold may have been renewed unseen."""


class KeyStates:
    """The states of all keys in use. Each event that follows from a change goes to `emit`.

    `now` is a clock that only runs forwards, `wall` the time of day, both in seconds.
    """

    def __init__(
        self, emit: Callable[[LockEvent], None], now: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._emit = emit
        self._clock = now
        self._wall = wall
        self._now = self._begun = now()
        """When the latest change was reported."""
        self._scans = 0
        self._states: dict[bytes, KeyState] = {}
        self._idle: dict[bytes, KeyState] = {}
        """The keys that went out of use last."""

    def all(self) -> list[KeyState]:
        """Return the states of all keys in use."""
        return list(self._states.values())

    def _at(self, key: bytes) -> KeyState:
        """Return the state of a key that a command has just changed."""
        state = self._states.get(key)
        if state is None:
            state = self._begin(key)
        state.as_of = self._now
        return state

    def _begin(self, key: bytes) -> KeyState:
        """Add a key that comes into use."""
        if len(self._states) >= MAX_KEYS:
            del self._states[next(iter(self._states))]
        state = self._states[key] = self._idle.pop(key) if key in self._idle else KeyState(key)
        return state

    def _drop_if_idle(self, state: KeyState) -> None:
        if state.is_idle and self._states.pop(state.key, None) is not None:
            self._idle[state.key] = state
            if len(self._idle) > MAX_IDLE:
                del self._idle[next(iter(self._idle))]

    def _grant(
        self, state: KeyState, lease: str, to: Acquire | SeenWaiter, by: Granted | Notification
    ) -> None:
        now = self._now
        ends = now + (by.claim_timeout if isinstance(by, Notification) else by.ttl)
        waiter = state.waiters.pop(lease, None)
        slots = known_slots(by.slots)
        hold = SeenHold(to.owner, to.note, by.token, to.units, slots, now, ends, is_own=True)
        if self._add(state, lease, hold):
            waited = now - waiter.since if waiter else 0.0
            self._report(state, "granted", lease, hold, at=hold.since, waited=waited)

    def _add(self, state: KeyState, lease: str, hold: SeenHold) -> bool:
        """Add a hold, after ending the holds that must have ended before it.

        False if one of these is newer: then this hold has ended itself, and is not added.
        """
        if lease in state.holds:
            self._end(state, lease, before=hold.since)
        over = state.displaced_by(hold.units, hold.slots)
        if over and max(state.holds[each].token for each in over) > hold.token:
            return False
        for each in over:
            self._end(state, each, before=hold.since, found=True)
        hold.since = max(hold.since, state.free_since(hold.slots))
        state.add_hold(lease, hold)
        return True

    def _resize(
        self,
        state: KeyState,
        lease: str,
        units: int,
        by: Granted | SeenHold,
        *,
        found: bool = False,
    ) -> None:
        """Change the units of a hold, after ending the holds that must have ended before that."""
        hold = state.remove_hold(lease)
        over = state.displaced_by(units, known_slots(by.slots))
        is_new = all(state.holds[each].token < by.token for each in over)
        if is_new:
            for each in over:
                self._end(state, each, found=True)
            state.slots_ended(hold.slots, self._now)
            hold.units, hold.slots, hold.token = units, known_slots(by.slots), by.token
        state.add_hold(lease, hold)
        if is_new:
            self._report(state, "resized", lease, hold, found=found)

    def _renew(self, state: KeyState, lease: str, hold: SeenHold, ttl: float) -> None:
        hold.ends, hold.is_own = self._now + ttl, True
        self._report(state, "renewed", lease, hold)

    def _end(
        self,
        state: KeyState,
        lease: str,
        what: EventType | None = None,
        *,
        reason: str = "",
        found: bool = False,
        before: float = inf,
    ) -> None:
        """End a hold at its expiry, or now, no later than `before`. Without `what`, the time decides."""
        hold = state.remove_hold(lease)
        at = min(self._now, before)
        if what is None:
            what = "expired" if hold.ends <= at + PUNCTUAL else "released"
        if what == "expired":
            at = min(at, hold.ends)
        at = max(at, hold.since)
        state.slots_ended(hold.slots, at)
        self._report(state, what, lease, hold, reason=reason, found=found, at=at)

    def _report(
        self,
        state: KeyState,
        what: EventType,
        lease: str,
        of: SeenHold | SeenWaiter,
        *,
        waited: float | None = None,
        reason: str = "",
        found: bool = False,
        at: float | None = None,
    ) -> None:
        """Emit an event that happened at that time, or now."""
        now = self._now
        if at is None:
            at = now
        token, held_for, is_own = 0, None, False
        slots: tuple[int, ...] = ()
        if type(of) is SeenHold:
            token, slots, is_own = of.token, of.slots, of.is_own
            if what != "granted":
                held_for = at - of.since
        elif what == "left":
            waited = at - of.since
        self._emit(
            LockEvent(
                what,
                state.key,
                self._wall() - (now - at),
                lease,
                of.owner,
                of.note,
                token,
                of.units,
                slots,
                waited,
                held_for,
                reason,
                found,
                is_own,
            )
        )

    # -- changes by commands ------------------------------------------------------------------------

    def applied(self, command: Command, reply: Reply) -> None:
        """Report a command that was applied, and its reply."""
        handle = _HANDLERS.get((type(command), type(reply)))
        if handle is not None:
            self._now = self._clock()
            handle(self, command, reply)

    def notified(self, notification: Notification) -> None:
        """Report a notification: it may grant to a waiter."""
        state = self._states.get(notification.key)
        waiter = None if state is None else state.waiters.get(notification.lease)
        if notification.event == "granted" and state is not None and waiter is not None:
            self._now = self._clock()
            self._grant(state, notification.lease, waiter, notification)

    def entered(self, command: Acquire, wait: float = 0.0) -> None:
        """Report a waiter. For `wait` seconds it sends heartbeats that are not reported."""
        now = self._now = self._clock()
        state, lease = self._at(command.key), fingerprint(command.id)
        waiter = state.waiters.get(lease)
        if waiter is None:
            waiter = SeenWaiter(command.owner, command.note, command.units, now, 0.0)
            state.waiters[lease] = waiter
            state.capacity = command.capacity
            self._report(state, "queued", lease, waiter)
        waiter.until = now + wait + command.waiter_ttl

    def left(self, key: bytes, lease_id: str) -> None:
        """Report that a request gave up its lease id. It may have entered no queue, or hold already."""
        self._now = self._clock()
        self._over(key, fingerprint(lease_id), "released")

    def _acquired(self, command: Acquire, reply: Granted) -> None:
        state, lease = self._at(command.key), fingerprint(command.id)
        state.capacity = command.capacity
        hold = state.holds.get(lease)
        if hold is None or hold.token != reply.token:
            self._grant(state, lease, command, reply)
        else:
            self._renew(state, lease, hold, reply.ttl)

    def _queued(self, command: Acquire, reply: Queued) -> None:
        self.entered(command)

    def _waits(self, command: Renew, reply: Queued) -> None:
        state = self._states.get(command.key)
        waiter = None if state is None else state.waiters.get(fingerprint(command.id))
        if waiter is not None:
            waiter.until = self._now + max(command.ttl, MIN_WAITER_TTL)

    def _renewed(self, command: Renew, reply: Renewed | Granted) -> None:
        state = self._states.get(command.key)
        if state is None:
            return  # a look will find it
        lease = fingerprint(command.id)
        hold, waiter = state.holds.get(lease), state.waiters.get(lease)
        if hold is not None:
            state.as_of = self._now
            self._renew(state, lease, hold, reply.ttl)
        elif waiter is not None and type(reply) is Granted:
            state.as_of = self._now
            self._grant(state, lease, waiter, reply)

    def _resized(self, command: Resize, reply: Granted) -> None:
        state = self._states.get(command.key)
        lease = fingerprint(command.id)
        hold = None if state is None else state.holds.get(lease)
        if state is not None and hold is not None and hold.units != command.units:
            state.as_of = self._now
            self._resize(state, lease, command.units, reply)

    def _lost(self, command: Renew, reply: Lost) -> None:
        lease = fingerprint(command.id)
        if reply.reason != "revoked":
            return self._over(command.key, lease, "expired", reply.detail)
        # It may hold until it releases. That, or a look, ends it.
        state = self._states.get(command.key)
        hold = None if state is None else state.holds.get(lease)
        if state is not None and hold is not None and not hold.revoked:
            hold.revoked = True
            self._report(state, "revoked", lease, hold, reason=reply.detail)

    def _released(self, command: Release, reply: Released) -> None:
        self._over(command.key, fingerprint(command.id), "released")

    def _over(self, key: bytes, lease: str, what: EventType, reason: str = "") -> None:
        """End a hold or a waiter that a command has ended."""
        state = self._states.get(key)
        if state is None:
            return
        state.as_of = self._now
        if lease in state.holds:
            self._end(state, lease, what, reason=reason)
        elif lease in state.waiters:
            self._report(state, "left", lease, state.waiters.pop(lease))
        self._drop_if_idle(state)

    def _revoked(self, command: Revoke, reply: Revoked) -> None:
        if not reply.count:
            return
        state = self._at(command.key)
        leases = list(state.holds) if command.lease is None else [command.lease]
        for lease in leases:
            hold = state.holds.get(lease)
            if hold is None:
                continue
            hold.revoked = True
            if command.now:
                self._end(state, lease, "freed", reason=command.reason)
            else:
                self._report(state, "revoked", lease, hold, reason=command.reason)
        self._drop_if_idle(state)

    # -- changes that looks at the store find --------------------------------------------------------

    def observe(self, status: Status, asked: float, *, scan: int = 0) -> None:
        """Compare a status with the known state and emit the differences. `asked`: when the look was sent."""
        state = self._states.get(status.key)
        if state is None:
            if not (status.holders or status.waiters) or len(self._states) >= MAX_KEYS:
                return
            idle = self._idle.get(status.key)
            if idle is not None and idle.as_of >= asked:
                return  # it is older than the end of its last hold
            state = self._begin(status.key)
        state.scan = scan or state.scan
        if state.as_of >= asked:
            return  # older than the known state
        now = self._now = self._clock()
        state.as_of = asked
        state.capacity = status.capacity
        found = {each.lease: SeenHold.of(each, now) for each in status.holders if each.lease}
        self._find_ends(state, status, found, now)
        for lease, hold in sorted(found.items(), key=lambda each: each[1].token):
            self._compare(state, lease, hold, now - asked)
        for each in status.waiters:
            waiter = state.waiters.get(each.lease)
            if waiter is not None:
                waiter.until = max(waiter.until, now + UNSEEN)
            else:
                waiter = state.waiters[each.lease] = SeenWaiter.of(each, now)
                if self._is_news(waiter.since):
                    self._report(state, "queued", each.lease, waiter, found=True)
        self._drop_if_idle(state)

    def _find_ends(
        self, state: KeyState, status: Status, found: Mapping[str, SeenHold], now: float
    ) -> None:
        """End holds and waiters that are gone, before the grants that followed."""
        gone_at = {
            each: now if self._is_resized(state, lease, hold) else hold.since
            for lease, hold in sorted(found.items(), key=lambda each: -each[1].since)
            if hold.token > state.newest_token
            for each in state.displaced_by(hold.units, hold.slots)
        }
        all_listed = status.holding <= len(status.holders)
        for lease in [lease for lease in state.holds if lease not in found]:
            at = gone_at.get(lease, now)
            if not (all_listed or lease in gone_at or state.holds[lease].ends <= now + PUNCTUAL):
                continue  # it may be one that is not listed
            self._end(state, lease, found=True, before=at)
        there = found.keys() | {waiter.lease for waiter in status.waiters}
        gone = [lease for lease in state.waiters if lease not in there]
        if status.waiting <= len(status.waiters):
            for lease in gone:
                self._report(state, "left", lease, state.waiters.pop(lease), found=True)
        else:  # not all are listed: it is known how many have gone, but not which
            for lease in gone[: max(len(state.waiters) - status.waiting, 0)]:
                del state.waiters[lease]

    def _compare(self, state: KeyState, lease: str, found: SeenHold, took: float) -> None:
        """Report the changes of one hold that a look found. The look took `took` seconds."""
        hold, is_resized = state.holds.get(lease), self._is_resized(state, lease, found)
        if hold is None or (hold.token != found.token and not is_resized):
            waiter = state.waiters.pop(lease, None)
            if self._add(state, lease, found) and (
                waiter is not None or self._is_news(found.since)
            ):
                since = found.since
                waited = None if waiter is None else since - waiter.since
                self._report(state, "granted", lease, found, at=since, waited=waited, found=True)
            return
        if is_resized:
            self._resize(state, lease, found.units, found, found=True)
        ended, hold.ends = hold.ends, max(hold.ends, found.ends)
        if found.ends - took > ended + RENEWED:
            hold.is_own = False
            self._report(state, "renewed", lease, hold, found=True)
        if found.revoked and not hold.revoked:
            hold.revoked = True
            self._report(state, "revoked", lease, hold, found=True)

    def _is_resized(self, state: KeyState, lease: str, found: SeenHold) -> bool:
        """Whether a known hold has other units now. With more units it has a new token too."""
        hold = state.holds.get(lease)
        return (
            hold is not None
            and hold.units != found.units
            and (hold.token == found.token or found.since < hold.since + PUNCTUAL)
        )

    def _is_news(self, since: float) -> bool:
        """Whether it began after this server: the first scan finds older holds too."""
        return self._scans > 0 or since >= self._begun

    def drop_expired(self) -> None:
        """End what has expired by this clock, for a store that lists no keys (an ACL without SCAN)."""
        now = self._now = self._clock()
        for state in self.all():
            for lease in [each for each, hold in state.holds.items() if hold.ends + LATE < now]:
                self._end(state, lease, "expired", found=True)
            for lease in [each for each, waiter in state.waiters.items() if waiter.until < now]:
                self._report(state, "left", lease, state.waiters.pop(lease), found=True)
            self._drop_if_idle(state)

    def begin_scan(self) -> int:
        """Return the number of a scan of all keys that begins; `observe` takes it."""
        return self._scans + 1

    def end_scan(self, scan: int, begun: float) -> None:
        """End a scan that began at that time: keys that it has not found are out of use."""
        for state in [each for each in self._states.values() if each.scan != scan]:
            self.observe(Status(state.key, 0), begun)
        self._scans = scan


_HANDLERS: dict[tuple[type, type], Callable[..., None]] = {
    (Acquire, Granted): KeyStates._acquired,
    (Acquire, Queued): KeyStates._queued,
    (Renew, Renewed): KeyStates._renewed,
    (Renew, Granted): KeyStates._renewed,
    (Renew, Queued): KeyStates._waits,
    (Renew, Lost): KeyStates._lost,
    (Release, Released): KeyStates._released,
    (Resize, Granted): KeyStates._resized,
    (Revoke, Revoked): KeyStates._revoked,
}
