"""Circles of waiters: who waits for somebody who, over one or more others, waits for them.

A store knows who holds a key and who waits for it, but not that a holder of one is a waiter for another.
So whoever has waited for a while *advertises* it: for each lease that its task or thread holds there is a
small lease of another kind, found by that one's fingerprint, whose note says what is waited for and from
which place in the queue. Nothing about it is special to a store. It ends with the wait, or by itself.

A *link* leads from somebody who waits to a hold without whose end that place can't be granted, whatever
else ends: those who hold the rest of a capacity, or are ahead in the queue, make none. A circle of links
is thus one that no holder's leaving can open, as each would have to be granted first.

The reads of a search are made one after the other, so a circle might be put together from links that never
stood at one time. It is read twice, and believed if it is the same. Ids are used once: a hold, an advert
or a place that has ended doesn't come back under its fingerprint. So what was seen by both readings stood all
the while between the two reads of it. As the first reading had ended before the second began, all these
spans have the moment in between in common, and the whole circle stood then.

Whoever finds a circle gives way if it began to wait last of all in it, by the store's stamps, which are the
tokens of the adverts; else it goes on waiting. One who waits may be in several circles, and finds one of
them at a time. But of all who are knotted together by circles one is the youngest, and so the youngest of
whichever circle it finds: it always gives way. What is left of the knot has a youngest in turn. Others of the
knot may give way as well, each the youngest of a circle that stood when it looked.
"""

from collections.abc import Iterator
from typing import NamedTuple
from weakref import ref

from dibs.core.names import fingerprint, wait_key
from dibs.core.timing import burial
from dibs.core.waits import Wait, read, written
from dibs.errors import Deadlock
from dibs.model import MANY, Acquire, Granted, Holder, Inspect, Status
from dibs.primitives.ask import Ask
from dibs.primitives.ids import new_id
from dibs.primitives.telling import key_shown
from dibs.runtime.port import Runtime

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
    """Advertises one wait, and looks for a circle that it is in."""

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
            raise _deadlock(self._ask.key, again)

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


def _deadlock(key: bytes, circle: tuple[Step, ...]) -> Deadlock:
    """What whoever gives way is told: who holds what, and waits for what."""
    holds = [step.hold for step in circle]
    told = "; ".join(
        f"{step.hold.owner} holds {key_shown(step.key)} and waits for {key_shown(step.advert.wait.key)}"
        for step in (circle[-1], *circle[:-1])
    )
    return Deadlock(
        f"{told}: none of these waits can end, and yours began last, so it gives way: release what you "
        "hold and begin again, and acquire in the same order everywhere, as AllOf does; a lease that another "
        "task or thread will release is that one's by lease.adopt() there",
        key=key,
        holders=tuple(holds),
    )
