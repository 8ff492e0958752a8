"""A second ledger for one key, written from DESIGN §3 alone: lists, loops, no heaps, nothing clever.

It serves as the reference for `dibs.core.ledger`.
"""

from dataclasses import dataclass, replace
from typing import Any

from dibs.core.names import fingerprint
from dibs.model import (
    MAX_SLOTS,
    Acquire,
    Command,
    Gone,
    Granted,
    Holder,
    Inspect,
    Lost,
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

YEAR_2200 = 7_258_118_400_000_000


@dataclass
class Line:
    """One id's line in the register: it holds, waits, or has ended."""

    id: str
    what: str
    """held, unclaimed, revoked, kept, waiting or ended"""
    life: float
    """How long it lives after it was heard of."""
    heard: float
    """When that was, by whatever clock counts."""
    wish: Acquire | None = None
    units: int = 0
    slots: tuple[int, ...] = ()
    token: int = 0
    seq: int = 0
    close: float = 0.0
    remember: float = 0.0
    why: str = ""
    since: int = 0
    silence: float = 0.0
    seen: int = 0
    number: int = 0

    @property
    def holds(self) -> bool:
        return self.what in ("held", "unclaimed", "revoked", "retained")


class Naive:
    """The reference: `do` a command at a time and get what the ledger should answer."""

    def __init__(self, limit: int | None = None, slack: float = 0.0) -> None:
        self.slack = slack
        """By what part of its life an entry outlives it: for an observer who has no clock of the store."""
        self.lines: list[Line] = []
        self.last = 0
        self.capacity = 0
        self.numbers = 0
        self.doubt = 0
        self.limit = limit
        self.details: dict[str, str] = {}
        """Why those that have ended were revoked."""
        self.pushed: list[tuple[str, str]] = []
        self.fresh: list[str] = []
        """Ids of the holds that the present command has granted to others, or keeps closed."""

    # -- reading ------------------------------------------------------------------------------------

    def line(self, id_: str) -> Line | None:
        return next((line for line in self.lines if line.id == id_), None)

    def holds(self) -> list[Line]:
        return [line for line in self.lines if line.holds]

    def queue(self) -> list[Line]:
        waiting = [line for line in self.lines if line.wish is not None and line.what == "waiting"]
        return sorted(waiting, key=lambda line: (-_wish(line).priority, line.number))

    def used(self) -> int:
        return sum(line.units for line in self.holds())

    def end(self, line: Line) -> float:
        return line.heard + (1 + self.slack) * line.life

    # -- one command --------------------------------------------------------------------------------

    def do(self, command: Command, now: float, stamp: int) -> tuple[Reply, set[tuple[str, str]]]:
        self.now, self.stamp = now, stamp
        self.pushed, self.fresh = [], []
        first = self.queue()[0].id if self.queue() else None
        self.settle()
        reply = getattr(self, type(command).__name__.lower())(command)
        self.settle()
        if self.queue() and self.queue()[0].id != first:
            self.pushed.append((self.queue()[0].id, "head"))
        caller = getattr(command, "id", None)
        return reply, {(fingerprint(id_), event) for id_, event in self.pushed if id_ != caller}

    # -- time -----------------------------------------------------------------------------------------

    def settle(self) -> None:
        for line in list(self.lines):
            if self.end(line) <= self.now:
                self.pass_away(line, self.now - self.end(line))
        while self.serve():
            pass

    def pass_away(self, line: Line, late: float) -> None:
        self.lines.remove(line)
        silent = line.what in ("unclaimed", "revoked")
        if line.what == "unclaimed":
            self.doubt = max(self.doubt, line.token)
        remember = 60.0 if silent else line.remember if line.what == "retained" else 0.0
        if line.holds and line.what != "retained" and line.close > late:
            kept = self.keep(line, line.close - late, 60.0 if silent else 0.0)
            self.lines.append(kept)
            self.fresh.append(line.id)
        elif line.holds and remember > late:
            why = line.what if silent else "released"
            self.lines.append(self.ended(line.id, remember - late, why, line.why))

    def keep(self, line: Line, seconds: float, remember: float) -> Line:
        kept = replace(line, what="retained", life=seconds, heard=self.now)
        return replace(kept, close=0.0, seq=0, why="", remember=remember)

    def ended(self, id_: str, seconds: float, why: str, detail: str = "") -> Line:
        self.details[id_] = detail
        return Line(id_, "ended", seconds, self.now, why=why)

    def serve(self) -> bool:
        for line in self.queue()[:64]:
            wish = _wish(line)
            if wish.units > self.capacity:
                self.replace(line, self.ended(line.id, 60.0, "too_large"))
                self.pushed.append((line.id, "refused"))
                return True
            if self.used() >= self.capacity:
                return False
            if self.silent(line):
                continue
            if self.used() + wish.units > self.capacity:
                return False
            self.replace(line, self.hold(wish, "unclaimed", claim_timeout(wish.ttl)))
            self.pushed.append((line.id, "granted"))
            self.fresh.append(line.id)
            return True
        return False

    def silent(self, line: Line) -> bool:
        return self.missed(line) or line.seen < self.doubt

    def missed(self, line: Line) -> bool:
        heard = self.end(line) - line.life
        return self.now - heard > line.silence

    def hold(self, wish: Acquire, what: str, life: float) -> Line:
        stamp = self.stamp if self.stamp <= YEAR_2200 else 0
        token = max(self.last + 1, wish.floor + 1, stamp)
        self.last = token
        line = Line(wish.id, what, life, self.now, wish, wish.units, self.free(wish.units), token)
        return replace(line, close=wish.lock_delay, since=self.stamp)

    def free(self, count: int) -> tuple[int, ...]:
        if self.capacity > MAX_SLOTS:
            return ()
        taken = [slot for line in self.holds() for slot in line.slots]
        return tuple([slot for slot in range(self.capacity) if slot not in taken][:count])

    def replace(self, old: Line, new: Line) -> None:
        self.lines[self.lines.index(old)] = new

    # -- commands -------------------------------------------------------------------------------------

    def acquire(self, wish: Acquire) -> Reply:
        line = self.line(wish.id)
        if line is not None and line.what == "waiting":
            return self.speak(line, wish.ttl)
        if line is not None and line.what in ("held", "unclaimed"):
            return self.claim(line, wish.ttl)
        if line is not None:
            return Refused("too_large") if line.why == "too_large" else Gone()
        if wish.units > wish.capacity:
            return Refused("too_large")
        self.capacity = wish.capacity
        self.settle()
        if self.is_next(wish):
            line = self.hold(wish, "held", wish.ttl)
            self.lines.append(line)
            return Granted(line.token, line.slots, wish.ttl)
        if not wish.queue:
            kept = self.holds() and all(hold.what == "retained" for hold in self.holds())
            return self.refusal("closed" if kept else "held")
        if self.limit is not None and len(self.queue()) >= self.limit:
            return self.refusal("queue_full")
        self.numbers += 1
        line = Line(wish.id, "waiting", wish.waiter_ttl, self.now, wish, number=self.numbers)
        line.since = self.stamp
        self.lines.append(line)
        return self.speak(line, wish.ttl)

    def is_next(self, wish: Acquire) -> bool:
        room = self.used() + wish.units <= self.capacity
        passed = self.silent if wish.queue else self.missed
        return room and all(map(passed, self.queue()[:64]))

    def refusal(self, reason: Any) -> Refused:
        ends = [self.end(line) - self.now for line in self.holds()]
        return Refused(reason, (), min(ends) if ends else 5.0)

    def live(self, line: Line, ttl: float) -> float:
        """Never shortened: as long as it would anyway, or `ttl`."""
        line.life = max(ttl, min(self.end(line) - self.now, line.life))
        line.heard = self.now
        return line.life

    def claim(self, line: Line, ttl: float) -> Granted:
        line.what = "held"
        return Granted(line.token, line.slots, self.live(line, ttl))

    def speak(self, line: Line, ttl: float) -> Reply:
        if _wish(line).units > self.capacity:
            self.replace(line, self.ended(line.id, 60.0, "too_large"))
            return Refused("too_large")
        window = claim_timeout(_wish(line).ttl)
        before = self.queue()[: self.queue().index(line)]
        living = len(before)
        for other in before[:64]:
            if not self.silent(other):
                break
            living -= 1
        front = len(before) < 16 or living < 16
        line.silence = window if front else 3 * window
        line.seen = self.last
        self.live(line, line.life)
        self.settle()
        now = self.line(line.id)
        if now is line and self.is_next(_wish(line)):
            now = self.hold(_wish(line), "unclaimed", window)
            self.replace(line, now)
        if now is not None and now.holds:
            return self.claim(now, ttl)
        ahead = self.queue().index(line)
        often = window / 3
        ends = [self.end(hold) - self.now for hold in self.holds()]
        lapses = [self.end(hold) - self.now for hold in self.holds() if hold.id in self.fresh]
        if not front:
            again = min([line.life / 3, window + min([window, *ends]), *lapses])
        elif ahead or not ends:
            again = often
        else:
            again = min(often, *ends)
        return Queued(ahead, again, self.now)

    def renew(self, command: Renew) -> Reply:
        line = self.line(command.id)
        if line is None or line.what == "retained":
            return Lost()
        if line.what == "held":
            return Renewed(self.live(line, command.ttl))
        if line.what == "unclaimed":
            return self.claim(line, command.ttl)
        if line.what == "waiting":
            reply = self.speak(line, command.ttl)
            return Lost("expired", "too large") if isinstance(reply, Refused) else reply
        if line.what == "revoked":
            return Lost("revoked", line.why)
        if line.why == "revoked":
            return Lost("revoked", self.details[line.id])
        return Lost()

    def release(self, command: Release) -> Reply:
        line = self.line(command.id)
        if line is None:
            if command.tombstone:
                self.lines.append(self.ended(command.id, command.tombstone, "released"))
            return Unknown()
        if line.what == "retained":
            line.remember = max(line.remember, command.tombstone)
            return Released()
        if line.what == "ended":
            if command.tombstone:
                self.live(line, command.tombstone)
            return Unknown()
        if line.holds and command.retain:
            self.replace(line, self.keep(line, command.retain, command.tombstone))
        elif command.tombstone:
            self.replace(line, self.ended(line.id, command.tombstone, "released"))
        else:
            self.lines.remove(line)
        return Released()

    def resize(self, command: Resize) -> Reply:
        line = self.line(command.id)
        if line is None or line.what not in ("held", "unclaimed", "revoked"):
            return Lost()
        if line.what == "revoked":
            return Lost("revoked", line.why)
        line.what = "held"
        left = self.live(line, 0.0)
        if command.seq > line.seq:
            line.seq = command.seq
            if command.units < line.units:
                line.units, line.slots = command.units, line.slots[: command.units]
            elif command.units > line.units:
                self.grow(line, command.units)
        if command.seq == line.seq and command.units != line.units:
            if command.units > self.capacity:
                return Refused("too_large")
            ends = [self.end(hold) - self.now for hold in self.holds() if hold is not line]
            return Refused("held", (), min(ends, default=0.0))
        return Granted(line.token, line.slots, left)

    def grow(self, line: Line, units: int) -> None:
        if self.used() - line.units + units > self.capacity:
            return
        if self.capacity > MAX_SLOTS:
            line.slots = ()
        else:
            line.slots = tuple(sorted((*line.slots, *self.free(units - len(line.slots)))))
        line.units = units
        line.token = max(self.last + 1, self.stamp if self.stamp <= YEAR_2200 else 0)
        self.last = line.token

    def revoke(self, command: Revoke) -> Reply:
        held = [line for line in self.holds() if line.what != "retained"]
        hit = [line for line in held if command.lease in (None, fingerprint(line.id))]
        for line in hit:
            self.pushed.append((line.id, "revoked"))
            if command.now:
                self.replace(line, self.ended(line.id, 60.0, "revoked", command.reason))
            else:
                line.what, line.why = "revoked", command.reason
        ends = [0.0] if command.now else [self.end(line) - self.now for line in hit]
        return Revoked(len(hit), max(ends, default=0.0))

    def inspect(self, command: Inspect) -> Status:
        holders = [self.holder(line) for line in sorted(self.holds(), key=lambda line: line.token)]
        waiters = [self.waiter(line) for line in self.queue()]
        counts = len(waiters), self.last, len(holders), self.used()
        return Status(command.key, self.capacity, tuple(holders), tuple(waiters), *counts)

    def holder(self, line: Line) -> Holder:
        who = ("", "") if line.what == "retained" else (fingerprint(line.id), _wish(line).owner)
        has = line.token, line.units, line.slots, self.age(line), self.end(line) - self.now
        return Holder(*who, *has, _wish(line).note, line.what)  # type: ignore[arg-type]

    def waiter(self, line: Line) -> Waiter:
        wish = _wish(line)
        wants = wish.owner, wish.units, wish.priority
        return Waiter(fingerprint(line.id), *wants, self.age(line), wish.note)

    def age(self, line: Line) -> float:
        return max(self.stamp - line.since, 0) / 1e6


def _wish(line: Line) -> Acquire:
    assert line.wish is not None
    return line.wish


def claim_timeout(ttl: float) -> float:
    return 5.0 if ttl >= 10 else ttl / 2 if ttl >= 1 else min(ttl, 0.5)
