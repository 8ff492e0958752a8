"""What a picture is drawn with: what becomes of each key, and how that is told and counted."""

from collections.abc import Callable
from math import inf

from dibs.model import Granted, Wakeup
from dibs.server.observatory.events import Event, What
from dibs.server.observatory.seen import Hold, Place, Seen

type Tell = Callable[[Event], None]

PUNCTUAL = 0.25
"""Seconds: a hold that is gone no earlier than this before its expiry has expired."""

MOST = 250_000
"""Keys in use that are known; for another one the oldest is forgotten."""

MOST_ENDED = 4096
"""Keys out of use, of which it is remembered when their last holds ended."""


class Sketch:
    """Keys in use. `now` is a clock that only runs forwards, `wall` the time of day."""

    def __init__(self, tell: Tell, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self._tell = tell
        self._now = now
        self._wall = wall
        self._begun = now()
        self._walks = 0
        self._seen: dict[bytes, Seen] = {}
        self._ended: dict[bytes, dict[int, float]] = {}
        """`Seen.ended` of the keys that came out of use last."""

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
        seen.ended = self._ended.pop(key, seen.ended)
        return seen

    def _drop_if_idle(self, seen: Seen) -> None:
        if seen.is_idle and self._seen.pop(seen.key, None) is not None:
            self._ended[seen.key] = seen.ended
            if len(self._ended) > MOST_ENDED:
                del self._ended[next(iter(self._ended))]

    def _grant(
        self,
        seen: Seen,
        lease: str,
        owner: str,
        note: str,
        units: int,
        by: Granted | Wakeup,
    ) -> Hold:
        now = self._now()
        place = seen.places.pop(lease, None)
        hold = Hold(owner, note, by.token, units, by.slots, now)
        if isinstance(by, Wakeup):
            hold.ends = now + by.window  # until it is claimed
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
        hold.since = max([hold.since, *(seen.ended.get(slot, 0.0) for slot in hold.slots)])
        seen.put(lease, hold)
        return True

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
        seen.ended.update(dict.fromkeys(hold.slots, at))
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
