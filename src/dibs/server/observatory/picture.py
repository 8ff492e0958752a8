"""The picture: what is held and waited for, as far as it was seen, and what becomes of it.

Two sources tell it: the answers to commands (`saw`), and looks at the store (`looked`, `walked`). What
one of them has told already the other does not tell again.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

from dibs.core.names import fingerprint
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
from dibs.server.observatory.events import Event, What
from dibs.server.observatory.seen import SILENT, Hold, Place, Seen, few

type Tell = Callable[[Event], None]

PUNCTUAL = 0.25
"""Seconds: a hold that is gone no earlier than this before its expiry has expired."""

MOST = 250_000
"""Keys in use that are known; for another one the oldest is forgotten."""

MOST_IDLE = 4096
"""Keys out of use that are remembered."""

RENEWED = 0.05
"""A lease whose end has moved by more than that and a look takes, in seconds, was renewed."""

LATE = 1.0
"""Seconds after its end for which a hold may have been renewed unseen."""

PATIENCE = 30.0
"""Seconds that a place stands at least after its owner has renewed it."""


class Idle(NamedTuple):
    """What is remembered of a key that is out of use."""

    ended: float
    """When its last hold ended."""
    changed: float
    """See `Seen.changed`."""


class Picture:
    """See the module. `now` is a clock that only runs forwards, `wall` the time of day."""

    def __init__(self, tell: Tell, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self._tell = tell
        self._now = now
        self._wall = wall
        self._begun = now()
        self._walks = 0
        self._seen: dict[bytes, Seen] = {}
        self._idle: dict[bytes, Idle] = {}
        """The keys that came out of use last."""

    def __len__(self) -> int:
        return len(self._seen)

    def of(self, key: bytes) -> Seen | None:
        """What is known of a key that is in use."""
        return self._seen.get(key)

    def all(self) -> list[Seen]:
        """What is known of each of them."""
        return list(self._seen.values())

    def _at(self, key: bytes) -> Seen:
        """What is known of a key that a command has just changed."""
        seen = self._seen.get(key)
        if seen is None:
            seen = self._begin(key)
        seen.changed = self._now()
        return seen

    def _begin(self, key: bytes) -> Seen:
        """A key that comes into use."""
        if len(self._seen) >= MOST:
            del self._seen[next(iter(self._seen))]
        seen = self._seen[key] = Seen(key)
        idle = self._idle.pop(key, None)
        if idle is not None:
            seen.others_ended, seen.changed = idle
        return seen

    def _drop_if_idle(self, seen: Seen) -> None:
        if seen.is_idle and self._seen.pop(seen.key, None) is not None:
            ended = max(seen.others_ended, *seen.ended.values(), 0.0)
            self._idle[seen.key] = Idle(ended, seen.changed)
            if len(self._idle) > MOST_IDLE:
                del self._idle[next(iter(self._idle))]

    def _grant(
        self,
        seen: Seen,
        lease: str,
        owner: str,
        note: str,
        units: int,
        by: Granted | Notification,
    ) -> Hold:
        now = self._now()
        place = seen.places.pop(lease, None)
        ends = (
            now + by.claim_timeout if isinstance(by, Notification) else now
        )  # until it is claimed
        hold = Hold(owner, note, by.token, units, few(by.slots), now, ends)
        if self._make_room(seen, lease, hold):
            self._tell_granted(seen, lease, hold, 0.0 if place is None else now - place.since)
        return hold

    def _make_room(self, seen: Seen, lease: str, hold: Hold) -> bool:
        """Add a hold, after the ends of those that it shows to be over.

        False if a newer one is known in its stead: then this one is over itself, and is not added.
        """
        if lease in seen.holds:
            self._end(seen, lease, self._ended_as(seen.holds[lease], hold.since), before=hold.since)
        over = seen.displaced_by(hold.units, hold.slots)
        if any(seen.holds[each].token > hold.token for each in over):
            return False
        for each in over:
            what = self._ended_as(seen.holds[each], hold.since)
            self._end(seen, each, what, before=hold.since, found=True)
        hold.since = max(hold.since, seen.free_since(hold.slots))
        seen.put(lease, hold)
        return True

    def _resize(
        self, seen: Seen, lease: str, units: int, by: Granted | Hold, *, found: bool = False
    ) -> None:
        """A hold has other units from now on; first come the ends of those that this shows to be over."""
        hold, now = seen.take(lease), self._now()
        over = seen.displaced_by(units, few(by.slots))
        is_new = all(seen.holds[each].token < by.token for each in over)
        if is_new:
            for each in over:
                self._end(seen, each, self._ended_as(seen.holds[each], now), found=True)
            seen.free(hold.slots, now)
            hold.units, hold.slots, hold.token = units, few(by.slots), by.token
        seen.put(lease, hold)
        if is_new:
            self._tell_of(seen, "resized", lease, hold, found=found)

    def _ended_as(self, hold: Hold, by: float) -> What:
        """How a hold ended that is known to be over at that time."""
        return "expired" if hold.ends <= by + PUNCTUAL else "released"

    def _tell_granted(
        self, seen: Seen, lease: str, hold: Hold, waited: float | None, *, found: bool = False
    ) -> None:
        self._tell_of(seen, "granted", lease, hold, waited=waited, found=found, at=hold.since)

    def _renew(self, seen: Seen, lease: str, hold: Hold, ttl: float) -> None:
        self._extend(hold, ttl)
        hold.renewals += 1
        self._tell_of(seen, "renewed", lease, hold)

    def _extend(self, hold: Hold, ttl: float) -> None:
        hold.ends = self._now() + ttl
        hold.ttl = ttl

    def _end(
        self,
        seen: Seen,
        lease: str,
        what: What,
        *,
        reason: str = "",
        found: bool = False,
        before: float = inf,
    ) -> None:
        """A hold has ended: at its expiry, or now, and no later than `before`."""
        hold = seen.take(lease)
        at = min(self._now(), before)
        if what == "expired":
            at = min(at, hold.ends)
        at = max(at, hold.since)
        seen.free(hold.slots, at)
        self._tell_of(seen, what, lease, hold, reason=reason, found=found, at=at)

    def _tell_of(
        self,
        seen: Seen,
        what: What,
        lease: str,
        of: Hold | Place,
        *,
        waited: float | None = None,
        reason: str = "",
        found: bool = False,
        at: float | None = None,
    ) -> None:
        """Tell of something that happened at that time, or now."""
        now = self._now()
        at = now if at is None else at
        held_for: float | None = None
        token = 0
        slots: tuple[int, ...] = ()
        if type(of) is Hold:
            token, slots = of.token, of.slots
            if what != "granted":
                held_for = at - of.since
        elif what == "left":
            waited = at - of.since
        self._tell(
            Event(
                what,
                seen.key,
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
            )
        )

    # -- what commands tell -------------------------------------------------------------------------

    def saw(self, command: Command, reply: Reply) -> None:
        """What has come of a command."""
        take = _TAKEN.get((type(command), type(reply)))
        if take is not None:
            take(self, command, reply)

    def heard(self, push: Notification) -> None:
        """A push: it grants to somebody who waits."""
        seen = self._seen.get(push.key)
        place = None if seen is None else seen.places.get(push.lease)
        if push.event == "granted" and seen is not None and place is not None:
            self._grant(seen, push.lease, place.owner, place.note, place.units, push)

    def _acquired(self, command: Acquire, reply: Granted) -> None:
        seen, lease = self._at(command.key), fingerprint(command.id)
        seen.capacity = command.capacity
        hold = seen.holds.get(lease)
        if hold is None or hold.token != reply.token:
            note = command.note
            hold = self._grant(seen, lease, command.owner, note, command.units, reply)
            self._extend(hold, reply.ttl)
        else:
            self._renew(seen, lease, hold, reply.ttl)

    def _queued(self, command: Acquire, reply: Queued) -> None:
        seen, lease = self._at(command.key), fingerprint(command.id)
        now = self._now()
        place = seen.places.get(lease)
        if place is None:
            place = Place(command.owner, command.note, command.units, now, 0.0)
            seen.places[lease] = place
            seen.capacity = command.capacity
            self._tell_of(seen, "queued", lease, place)
        place.until = now + command.waiter_ttl

    def _waits(self, command: Renew, reply: Queued) -> None:
        seen = self._seen.get(command.key)
        place = None if seen is None else seen.places.get(fingerprint(command.id))
        if place is not None:
            place.until = self._now() + max(command.ttl, PATIENCE)

    def _renewed(self, command: Renew, reply: Renewed | Granted) -> None:
        seen = self._seen.get(command.key)
        if seen is None:
            return  # a look will find it
        lease = fingerprint(command.id)
        hold, place = seen.holds.get(lease), seen.places.get(lease)
        if hold is not None:
            seen.changed = self._now()
            self._renew(seen, lease, hold, reply.ttl)
        elif place is not None and type(reply) is Granted:
            seen.changed = self._now()
            hold = self._grant(seen, lease, place.owner, place.note, place.units, reply)
            self._extend(hold, reply.ttl)

    def _resized(self, command: Resize, reply: Granted) -> None:
        seen = self._seen.get(command.key)
        lease = fingerprint(command.id)
        hold = None if seen is None else seen.holds.get(lease)
        if seen is not None and hold is not None and hold.units != command.units:
            seen.changed = self._now()
            self._resize(seen, lease, command.units, reply)

    def _lost(self, command: Renew, reply: Lost) -> None:
        self._over(command.key, fingerprint(command.id), "expired", reply.reason, reply.detail)

    def _released(self, command: Release, reply: Released) -> None:
        self._over(command.key, fingerprint(command.id), "released")

    def _over(self, key: bytes, lease: str, what: What, *why: str) -> None:
        """A command has learnt that a lease, or a place, is no more."""
        seen = self._seen.get(key)
        if seen is None:
            return
        seen.changed = self._now()
        if lease in seen.holds:
            reason = ": ".join(each for each in why if each != "expired" and each)
            self._end(seen, lease, what, reason=reason)
        elif lease in seen.places:
            self._tell_of(seen, "left", lease, seen.places.pop(lease))
        self._drop_if_idle(seen)

    def _revoked(self, command: Revoke, reply: Revoked) -> None:
        if not reply.count:
            return
        seen = self._at(command.key)
        leases = list(seen.holds) if command.lease is None else [command.lease]
        for lease in leases:
            hold = seen.holds.get(lease)
            if hold is None:
                continue
            hold.revoked = True
            if command.now:
                self._end(seen, lease, "freed", reason=command.reason)
            else:
                self._tell_of(seen, "revoked", lease, hold, reason=command.reason)
        self._drop_if_idle(seen)

    # -- what looks tell ----------------------------------------------------------------------------

    def looked(self, status: Status, asked: float, *, walk: int = 0) -> None:
        """What a look has found that was asked for at that time."""
        seen = self._seen.get(status.key)
        if seen is None:
            if not (status.holders or status.waiters) or len(self._seen) >= MOST:
                return
            idle = self._idle.get(status.key)
            if idle is not None and idle.changed >= asked:
                return  # it is older than the end of its last hold
            seen = self._begin(status.key)
        seen.walk = walk or seen.walk
        if seen.changed >= asked:
            return  # it is older than what is known
        now = self._now()
        seen.changed = asked
        seen.capacity = status.capacity
        found = {each.lease: Hold.of(each, now) for each in status.holders if each.lease}
        self._look_for_ends(seen, status, found, now)
        for lease, hold in sorted(found.items(), key=lambda each: each[1].token):
            self._look_at(seen, lease, hold, now - asked)
        for waiter in status.waiters:
            place = seen.places.get(waiter.lease)
            if place is not None:
                place.until = max(place.until, now + SILENT)
            else:
                place = seen.places[waiter.lease] = Place.of(waiter, now)
                if self._is_news(place.since):
                    self._tell_of(seen, "queued", waiter.lease, place, found=True)
        self._drop_if_idle(seen)

    def _look_for_ends(
        self, seen: Seen, status: Status, found: Mapping[str, Hold], now: float
    ) -> None:
        """The ends of what is there no more, before the grants that followed."""
        gone_at = {
            each: now if self._is_resized(seen, lease, hold) else hold.since
            for lease, hold in sorted(found.items(), key=lambda each: -each[1].since)
            if hold.token > seen.newest
            for each in seen.displaced_by(hold.units, hold.slots)
        }
        all_listed = status.holding <= len(status.holders)
        for lease in [lease for lease in seen.holds if lease not in found]:
            at = gone_at.get(lease, now)
            if not (all_listed or lease in gone_at or seen.holds[lease].ends <= now + PUNCTUAL):
                continue  # it may be one that is not listed
            self._end(seen, lease, self._ended_as(seen.holds[lease], at), found=True, before=at)
        there = found.keys() | {waiter.lease for waiter in status.waiters}
        gone = [lease for lease in seen.places if lease not in there]
        if status.waiting <= len(status.waiters):
            for lease in gone:
                self._tell_of(seen, "left", lease, seen.places.pop(lease), found=True)
        else:  # not all are named, so nobody knows which of them have gone, but how many
            for lease in gone[: max(len(seen.places) - status.waiting, 0)]:
                del seen.places[lease]

    def _look_at(self, seen: Seen, lease: str, found: Hold, took: float) -> None:
        hold, is_resized = seen.holds.get(lease), self._is_resized(seen, lease, found)
        if hold is None or (hold.token != found.token and not is_resized):
            place = seen.places.pop(lease, None)
            if self._make_room(seen, lease, found) and (
                place is not None or self._is_news(found.since)
            ):
                waited = None if place is None else found.since - place.since
                self._tell_granted(seen, lease, found, waited, found=True)
            return
        if is_resized:
            self._resize(seen, lease, found.units, found, found=True)
        ended, hold.ends = hold.ends, max(hold.ends, found.ends)
        if found.ends - took > ended + RENEWED:
            hold.renewals += 1
            self._tell_of(seen, "renewed", lease, hold, found=True)
        if found.revoked and not hold.revoked:
            hold.revoked = True
            self._tell_of(seen, "revoked", lease, hold, found=True)

    def _is_resized(self, seen: Seen, lease: str, found: Hold) -> bool:
        """Whether a hold that is known has other units now. More units are a new token too."""
        hold = seen.holds.get(lease)
        return (
            hold is not None
            and hold.units != found.units
            and (hold.token == found.token or found.since < hold.since + PUNCTUAL)
        )

    def _is_news(self, since: float) -> bool:
        """What was so before we began has not happened."""
        return self._walks > 0 or since >= self._begun

    def lapse(self) -> None:
        """Forget what is over by its own time, where the store shows nothing (an ACL without SCAN)."""
        now = self._now()
        for seen in self.all():
            for lease in [each for each, hold in seen.holds.items() if hold.ends + LATE < now]:
                self._end(seen, lease, "expired", found=True)
            for lease in [each for each, place in seen.places.items() if place.until < now]:
                self._tell_of(seen, "left", lease, seen.places.pop(lease), found=True)
            self._drop_if_idle(seen)

    def begin_walk(self) -> int:
        """A walk through all keys begins; its number goes with what it finds."""
        return self._walks + 1

    def walked(self, walk: int, begun: float) -> None:
        """A walk that began then has come to its end: what it has not found is no more."""
        for seen in [each for each in self._seen.values() if each.walk != walk]:
            self.looked(Status(seen.key, 0), begun)
        self._walks = walk


_TAKEN: dict[tuple[type, type], Callable[..., None]] = {
    (Acquire, Granted): Picture._acquired,
    (Acquire, Queued): Picture._queued,
    (Renew, Renewed): Picture._renewed,
    (Renew, Granted): Picture._renewed,
    (Renew, Queued): Picture._waits,
    (Renew, Lost): Picture._lost,
    (Release, Released): Picture._released,
    (Resize, Granted): Picture._resized,
    (Revoke, Revoked): Picture._revoked,
}
