"""The picture: what is held and waited for, as far as it was seen, and what becomes of it.

Two sources tell it: the answers to commands (`saw`), and looks at the store (`looked`, `walked`). What
one of them has told already the other does not tell again.
"""

from collections.abc import Callable, Mapping

from dibs.core.names import fingerprint
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Lost,
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
    Wakeup,
)
from dibs.server.observatory.events import What
from dibs.server.observatory.seen import Hold, Place, Seen
from dibs.server.observatory.sketch import MOST, PUNCTUAL, Sketch

RENEWED = 0.05
"""A lease whose end has moved by more than that and a look takes, in seconds, was renewed."""

LATE = 1.0
"""Seconds after its end for which a hold may have been renewed unseen."""

SILENT = 150.0
"""Seconds without a command about a key after which nobody waits for it any more."""


class Picture(Sketch):
    """See the module."""

    # -- what commands tell -------------------------------------------------------------------------

    def saw(self, command: Command, reply: Reply) -> None:
        """What has come of a command."""
        take = _TAKEN.get((type(command), type(reply)))
        if take is not None:
            take(self, command, reply)

    def heard(self, push: Wakeup) -> None:
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
        if lease not in seen.places:
            place = Place(command.owner, command.note, command.units, self._now())
            seen.places[lease] = place
            self._tell_of(seen, "queued", lease, place)

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
            seen.resize(lease, command.units, reply.slots)
            self._tell_of(seen, "resized", lease, hold)

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
            seen = self._begin(status.key)
        seen.walk = walk or seen.walk
        if seen.changed >= asked:
            return  # it is older than what is known
        now = self._now()
        seen.capacity = status.capacity
        found = {each.lease: Hold.of(each, now) for each in status.holders if each.lease}
        self._look_for_ends(seen, status, found, now)
        for lease, hold in sorted(found.items(), key=lambda each: each[1].token):
            self._look_at(seen, lease, hold, now - asked)
        for waiter in status.waiters:
            if waiter.lease not in seen.places:
                place = seen.places[waiter.lease] = Place.of(waiter, now)
                if self._is_news(place.since):
                    self._tell_of(seen, "queued", waiter.lease, place, found=True)
        self._drop_if_idle(seen)

    def _look_for_ends(
        self, seen: Seen, status: Status, found: Mapping[str, Hold], now: float
    ) -> None:
        """The ends of what is there no more, before the grants that followed."""
        gone_at = {
            each: hold.since
            for hold in sorted(found.values(), key=lambda hold: -hold.since)
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
        hold = seen.holds.get(lease)
        if hold is None or hold.token != found.token:
            place = seen.places.pop(lease, None)
            if self._make_room(seen, lease, found) and (
                place is not None or self._is_news(found.since)
            ):
                waited = None if place is None else found.since - place.since
                self._tell_granted(seen, lease, found, waited, found=True)
            return
        if found.units != hold.units:
            seen.resize(lease, found.units, found.slots)
            self._tell_of(seen, "resized", lease, hold, found=True)
        ended, hold.ends = hold.ends, max(hold.ends, found.ends)
        if found.ends - took > ended + RENEWED:
            hold.renewals += 1
            self._tell_of(seen, "renewed", lease, hold, found=True)
        if found.revoked and not hold.revoked:
            hold.revoked = True
            self._tell_of(seen, "revoked", lease, hold, found=True)

    def _is_news(self, since: float) -> bool:
        """What was so before we began has not happened."""
        return self._walks > 0 or since >= self._begun

    def lapse(self) -> None:
        """Forget what is over by its own time, where the store shows nothing (an ACL without SCAN)."""
        now = self._now()
        for seen in self.all():
            for lease in [each for each, hold in seen.holds.items() if hold.ends + LATE < now]:
                self._end(seen, lease, "expired", found=True)
            if seen.changed + SILENT < now:
                for lease in list(seen.places):
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
    (Renew, Lost): Picture._lost,
    (Release, Released): Picture._released,
    (Resize, Granted): Picture._resized,
    (Revoke, Revoked): Picture._revoked,
}
