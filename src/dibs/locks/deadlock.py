"""What a waiter does besides waiting: it tells how the wait goes, and looks for a circle it is in.

A wait costs nothing more unless somebody asked to be told, or the waiter holds something else and has
waited for a while.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from math import inf
from typing import NamedTuple
from weakref import ref

from dibs.core.names import fingerprint, wait_key
from dibs.core.timing import burial
from dibs.errors import Deadlock, DibsError
from dibs.locks.messages import ASIDE, key_shown
from dibs.locks.requests import Ask, new_id
from dibs.locks.waiting import EVERY, OnWait, Watcher
from dibs.model import MANY, Acquire, Granted, Holder, Inspect, Status
from dibs.runtime.port import Runtime


class Wait(NamedTuple):
    """What somebody waits for."""

    key: bytes
    units: int
    place: str
    """The fingerprint of the place in the queue."""


def written(wait: Wait, began: int) -> str:
    """A wait as an advert's note. `began` may be told by how long ago that was, in µs, as a negative."""
    key = urlsafe_b64encode(wait.key).decode()
    return f"{wait.place} {wait.units} {began} {key}"


def read(note: str) -> tuple[Wait, int]:
    """What `written` has written. Raises `ValueError` for anything else, as of another release than this."""
    place, units, began, key = note.split(" ")
    return Wait(urlsafe_b64decode(key), int(units), place), int(began)


FIRST_LOOK = 1.0
"""Who has waited for so many seconds looks for a circle; then after twice as long, and so on."""


def first_due(rt: Runtime, ask: Ask, on_wait: OnWait | None, since: float) -> float:
    """When somebody who has waited since then has something to look out for; `inf` if never.

    Nobody waits for a task or thread that holds nothing. What it adopts or acquires in its own `on_wait`
    counts if that is before the first look; it can't come to hold anything in another way while it waits.
    """
    if on_wait is not None:
        return since
    if _detects(rt, ask) and rt.holding.of(rt.me()):
        return since + FIRST_LOOK
    return inf


def _detects(rt: Runtime, ask: Ask) -> bool:
    return ask.detects and rt.capabilities.circles


class Lookout:
    """One wait's, made when something is due for the first time. The waiter calls `end` however it ends."""

    __slots__ = (
        "_ask",
        "_detective",
        "_interval",
        "_look_at",
        "_rt",
        "_since",
        "_tell_at",
        "_watcher",
    )

    def __init__(self, rt: Runtime, ask: Ask, on_wait: OnWait | None, since: float) -> None:
        self._rt = rt
        self._ask = ask
        self._since = since
        self._watcher = None if on_wait is None else Watcher(ask.key, on_wait, since)
        self._tell_at = inf if on_wait is None else since
        self._look_at = since + FIRST_LOOK if _detects(rt, ask) else inf
        self._interval = FIRST_LOOK
        self._detective: Detective | None = None

    async def look(self, place: str, ahead: int | None) -> float:
        """Do what is due, from the place of that fingerprint; return when something will be due again.

        Without a place (it is empty) no circle is looked for until there is one. `ahead` is how many were
        before it when the store was last asked. Raises `Deadlock`, and nothing else.
        """
        try:
            if self._tell_at <= self._rt.now():
                await self._tell(place, ahead)
            if place and self._look_at <= self._rt.now():
                await self._search(place)
        except Deadlock:
            raise
        except DibsError:
            pass  # the store is away: who waits will find that out, and say so
        return min(self._tell_at, self._look_at)

    def end(self) -> None:
        """The wait is over."""
        if self._detective is not None:
            self._detective.withdraw()

    async def _tell(self, place: str, ahead: int | None) -> None:
        assert self._watcher is not None
        try:
            status = (await self._rt.call(Inspect(self._ask.key), ASIDE)).reply
            if isinstance(status, Status):
                named = [waiter.lease for waiter in status.waiters]
                ahead = named.index(place) if place in named else ahead
                await self._watcher.tell(status, ahead, self._rt.now())
        finally:
            self._tell_at = self._rt.now() + EVERY

    async def _search(self, place: str) -> None:
        if self._detective is None:
            self._detective = Detective(self._rt, self._ask, self._since)
        if not self._detective.holds_anything:
            self._look_at = inf  # and who waits can't come to hold anything
            return
        self._interval = min(2 * self._interval, max(self._ask.ttl / 2, FIRST_LOOK))
        try:
            await self._detective.look(place)
        finally:
            self._look_at = self._rt.now() + self._interval


MOST_READS = 200
"""A search gives up after so many: a circle of a hundred, or a crowd of readers."""

LEAST_TTL = 4.0
"""An advert outlasts the pause between two looks, also where leases are short."""


class Advert(NamedTuple):
    """What a holder tells of its wait."""

    lease: str
    """The fingerprint of the advert's own id."""
    began: int
    """When the wait began, by the stamp that the store gave the advert: the greatest is the last."""
    wait: Wait


class Step(NamedTuple):
    """One link of a circle, and what the holder in the way waits for itself."""

    key: bytes
    hold: Holder
    advert: Advert

    @property
    def seen(self) -> tuple[str, Advert]:
        """What has to be the same in both readings."""
        return self.hold.lease, self.advert


class Detective:
    """Advertises one wait, and looks for a circle of waiters that it is in (ADR 11).

    While it waits, each lease that its task or thread holds has a small lease of another kind, found by that
    one's fingerprint, whose note says what is waited for. A circle is read twice and believed if it is the
    same: ids are used once, so all of it stood between the two readings. The youngest of a circle gives way.
    """

    def __init__(self, rt: Runtime, ask: Ask, since: float) -> None:
        self._rt = rt
        self._ask = ask
        self._since = since
        self._held = [ref(lease) for lease in rt.holding.of(rt.me())]
        self._ids: dict[str, str] = {}
        """Of our adverts, by the fingerprint of what is held."""
        self._mine: dict[str, Advert] = {}
        self._began: dict[str, int] = {}
        self._in_doubt = False
        self._reads = 0

    @property
    def holds_anything(self) -> bool:
        """Whether anybody could wait for us."""
        return any(self._standing())

    async def look(self, place: str) -> None:
        """Raises `Deadlock` if this wait is in a circle, and began last of all that are."""
        wait = Wait(self._ask.key, self._ask.units, place)
        if any(advert.wait != wait for advert in self._mine.values()):
            self._give_up_adverts()  # our place is another by now
        await self._advertise(wait)
        circle = await self._find(wait)
        if circle is None or max(circle, key=_age) is not circle[-1]:
            return
        again = await self._find(wait)
        if again is not None and [step.seen for step in again] == [step.seen for step in circle]:
            raise _deadlock(self._rt, self._ask.key, again)

    def withdraw(self) -> None:
        """The wait is over."""
        self._give_up_adverts()

    # -- telling ------------------------------------------------------------------------------------

    async def _advertise(self, wait: Wait) -> None:
        """Take or renew an advert for each lease that is held here."""
        for lease in self._standing():
            await self._advertise_on(lease, wait)

    async def _advertise_on(self, lease: str, wait: Wait) -> None:
        own = self._ids.setdefault(lease, new_id())
        waited = round((self._rt.now() - self._since) * 1e6)
        began = self._began.get(lease, -waited)
        advert = Acquire(
            wait_key(lease),
            own,
            self._ask.owner,
            max(self._ask.ttl, LEAST_TTL),
            capacity=MANY,
            note=written(wait, began),
        )
        self._in_doubt = True
        reply = (await self._rt.call(advert)).reply
        self._in_doubt = False
        if isinstance(reply, Granted):
            began = self._began.setdefault(lease, reply.token - waited)
            self._mine[lease] = Advert(fingerprint(own), began, wait)

    def _give_up_adverts(self) -> None:
        bury = burial(self._rt.call_timeout) if self._in_doubt else 0.0
        ids, self._ids, self._mine = self._ids, {}, {}
        for lease, own in ids.items():
            self._rt.keeper.abandon(wait_key(lease), own, bury)

    def _standing(self) -> Iterator[str]:
        """The fingerprints of what our task or thread holds."""
        for lease in self._held:
            held = lease()
            if held is not None and held._stands:
                yield fingerprint(held._id)

    # -- looking ------------------------------------------------------------------------------------

    async def _find(self, wait: Wait) -> tuple[Step, ...] | None:
        """A circle that leads from this wait to a lease of ours."""
        self._reads = 0
        return await self._follow(wait, (), {wait.place})

    async def _follow(
        self, wait: Wait, path: tuple[Step, ...], seen: set[str]
    ) -> tuple[Step, ...] | None:
        status = await self._read(wait.key)
        for hold in _in_the_way(status, wait, is_ours=not path):
            own = self._mine.get(hold.lease)
            if own is not None and not path:
                continue  # who waits to upgrade a lease is not in its own way
            advert = own or _advert(await self._read(wait_key(hold.lease)))
            if advert is None or (own is None and advert.wait.place in seen):
                continue
            steps = (*path, Step(wait.key, hold, advert))
            if own is not None:
                return steps
            seen.add(advert.wait.place)
            found = await self._follow(advert.wait, steps, seen)
            if found is not None:
                return found
        return None

    async def _read(self, key: bytes) -> Status:
        self._reads += 1
        if self._reads <= MOST_READS:
            status = (await self._rt.call(Inspect(key))).reply
            if isinstance(status, Status):
                return status
        return Status(key, 1)


def _in_the_way(status: Status, wait: Wait, *, is_ours: bool) -> list[Holder]:
    """Those without whose leaving that place can't be granted, of those that the store lists.

    Of others' places only those that the store names are believed in: an advert may outlive its wait.
    """
    all_named = status.waiting <= len(status.waiters)
    named = any(waiter.lease == wait.place for waiter in status.waiters)
    if not named and (all_named or not is_ours):
        return []  # it waits no more, or nobody can tell
    return [
        holder
        for holder in status.holders
        if holder.state in ("held", "unclaimed") and status.capacity - holder.units < wait.units
    ]


def _age(step: Step) -> tuple[int, str]:
    return step.advert.began, step.advert.lease


def _advert(status: Status) -> Advert | None:
    """What the holder of a lease tells, the newest if it tells several things."""
    for holder in reversed(status.holders):
        try:
            wait, stamp = read(holder.note)
            return Advert(holder.lease, stamp if stamp > 0 else holder.token + stamp, wait)
        except ValueError:
            continue  # of another release than this
    return None


def _deadlock(rt: Runtime, key: bytes, circle: tuple[Step, ...]) -> Deadlock:
    """What whoever gives way is told: who holds what, and waits for what."""
    holds = [step.hold for step in circle]
    alike = len({hold.owner for hold in holds}) < len(holds)
    names = rt.holding.names() if alike else {}
    told = "; ".join(
        f"{step.hold.owner}{names.get(step.hold.lease, '')} holds {key_shown(step.key)} and waits for "
        f"{key_shown(step.advert.wait.key)}"
        for step in (circle[-1], *circle[:-1])
    )
    return Deadlock(
        f"{told}: none of these waits can end. Yours began last, so it was cancelled. Release what you hold "
        "and start again. To avoid this, acquire in the same order everywhere, as AllOf does. If another "
        "task or thread will release a lease, call lease.adopt() there",
        key=key,
        holders=tuple(holds),
    )
