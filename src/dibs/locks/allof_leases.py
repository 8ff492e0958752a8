"""The leases of an `AllOf`: entered, checked and released together."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, NoReturn, overload

from dibs.config import UNSET, Duration, LockConfig, Unset
from dibs.locks.base import PrimitiveBase
from dibs.locks.lease import LeaseBase, tell_loss
from dibs.locks.messages import LossReason, key_shown, span
from dibs.locks.requests import Ask, Terms
from dibs.locks.waiting import OnWait
from dibs.runtime.port import Runtime


class LeasesBase[LeaseT: LeaseBase](Sequence[LeaseT]):
    """The leases of an `AllOf`, in the order of its arguments; made by it only."""

    __slots__ = ("__weakref__", "_each", "_me", "_once", "_rt")

    def __init__(self, rt: Runtime, leases: Iterable[LeaseT], me: object) -> None:
        self._each = tuple(leases)
        self._once = tuple(dict.fromkeys(self._each))
        self._rt = rt
        self._me = me

    # -- what they are ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._each)

    @overload
    def __getitem__(self, index: int) -> LeaseT: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LeaseT]: ...
    def __getitem__(self, index: int | slice) -> LeaseT | Sequence[LeaseT]:
        return self._each[index]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The fencing token of each."""
        return tuple(lease.token for lease in self._each)

    @property
    def lost(self) -> bool:
        """One of them ended before its holder gave it up."""
        return any(lease.lost for lease in self._once)

    @property
    def reason(self) -> LossReason | None:
        """Why one was lost: of several, the first in the order of the arguments; None unless one was."""
        return next((lease.reason for lease in self._once if lease.lost), None)

    @property
    def remaining(self) -> float:
        """The seconds until the first of their deadlines; 0 once one has ended."""
        return min(lease.remaining for lease in self._once)

    def ensure(self, needs: Duration = 0) -> None:
        """Raise unless each has at least `needs` (seconds, or "2s") left before its deadline.

        Raises `LeaseLost` that names the one that is lost or has too little left, `NotHeld` if one was
        given up.
        """
        for lease in self._once:
            lease.ensure(needs)

    def __repr__(self) -> str:
        names = ", ".join(key_shown(lease.key) for lease in self._once)
        state = self.reason or (f"{span(self.remaining)} left" if self.remaining else "given up")
        return f"<Leases on {names}, {state}>"

    # -- for both worlds ----------------------------------------------------------------------------

    async def _release(self) -> bool:
        """Give all of them up in one round trip; True if each was held until now."""
        return await release_together(self._rt, self._once)

    async def _wait_lost(self, timeout: float | None) -> bool:
        """Wait until one is lost; False at the timeout, or once all were given up."""
        rt = self._rt
        until = None if timeout is None else rt.now() + timeout
        while not self.lost:
            held = [lease for lease in self._once if lease._end is None]
            left = None if until is None else until - rt.now()
            if not held or (left is not None and left <= 0):
                break
            signal = rt.signal()
            try:
                for lease in held:
                    lease._watch(signal)
                await signal.wait(left)
            finally:
                for lease in held:
                    lease._unwatch(signal)
        return self.lost

    async def _begin(self) -> None:
        """The body begins."""
        self._enter()

    def _enter(self) -> None:
        """The body begins. Raises `LeaseLost` if one is lost already; then the others are given up."""
        try:
            for lease in self._once:
                lease._enter()
        except BaseException as error:
            for lease in self._once:
                lease._disarm(error)
            self._drop()
            raise

    async def _leave(self, exc: BaseException | None) -> None:
        """The body has ended: release, and turn a loss into `LeaseLost` where nothing else is hidden."""
        # all of them, as each that was lost takes its own cancellation back
        ends = [lease._disarm(exc) for lease in self._once]
        standing = [lease for lease in self._once if lease._stands]
        ended = [lease._conclude() for lease in self._once if lease not in standing]
        losses = [loss for loss in ended if loss is not None]
        if standing:
            await release_together(self._rt, standing)
        if losses:
            for other in losses[1:]:
                losses[0].add_note(str(other))
            tell_loss(losses[0], exc, any(ends))

    def _drop(self) -> None:
        """Give them up in silence, those that weren't."""
        for lease in self._once:
            lease._drop()


async def release_together(rt: Runtime, leases: Sequence[LeaseBase]) -> bool:
    """Give them up; True if all were held until now. Never raises because the store is away."""
    stood = all(lease._stands for lease in leases)
    parting: list[LeaseBase] = []
    try:
        for lease in leases:
            hold = lease._part()
            if hold is not None:
                parting.append(hold)
        told = await rt.call_all([hold._farewell() for hold in parting]) if parting else ()
    except BaseException:
        for hold in parting:
            hold._abandon()
        raise
    were_held = [hold._parted(each) for hold, each in zip(parting, told, strict=True)]
    return stood and all(were_held)


_ELSEWHERE = {
    "tasklock": "a TaskLock never waits, and stays closed after it was given up: acquire it alone, "
    "before the others",
    "leader": "a LeaderElection is won once and led for long: lead first, and acquire the others "
    "inside",
    "rwlock": "say what for: lock.read() or lock.write()",
}


class Part(NamedTuple):
    """One of several that are wanted together."""

    primitive: PrimitiveBase[Any]
    units: int = 1
    ttl: float | None = None
    """None: the primitive's own."""
    wait: float | Unset | None = UNSET
    """Unset: the primitive's own; None: for ever."""
    on_wait: OnWait | None = None
    """None: the primitive's own."""

    @property
    def key(self) -> bytes:
        """The key that it is about."""
        return self.primitive.key

    @property
    def differences(self) -> dict[str, Any]:
        """All that makes a difference to its lease."""
        primitive = self.primitive
        found = {field.name: getattr(primitive.config, field.name) for field in fields(LockConfig)}
        found |= {"capacity": primitive._capacity, "on_lost": primitive._on_lost}
        del found["wait"]  # of the acquire, not of the lease
        return found if self.ttl is None else found | {"ttl": self.ttl}

    def wish(self, priority: int | None, note: str | None, on_wait: OnWait | None) -> "Wish":
        """What is asked of the store, and how it will be held."""
        self.primitive._describe_here()
        ask, terms = self.primitive._another_wish(self.units, priority, note)
        if self.ttl is not None:
            ask, terms = ask._replace(ttl=self.ttl), terms._replace(ttl=self.ttl)
        return Wish(self.primitive, ask, terms, on_wait or self.on_wait or self.primitive._on_wait)

    @property
    def patience(self) -> float | None:
        """How long it would be waited for."""
        wait: Any = self.primitive.config.wait if isinstance(self.wait, Unset) else self.wait
        patience: float | None = wait
        return patience


class Wish(NamedTuple):
    """A part, as it is asked for from this process."""

    primitive: PrimitiveBase[Any]
    ask: Ask
    terms: Terms
    on_wait: OnWait | None


def checked(member: object, takes: type[PrimitiveBase[Any]], world: str) -> Part:
    """One argument, a primitive or a pair of one and its units. Raises `TypeError`, `ValueError`."""
    primitive, units = member if isinstance(member, tuple) and len(member) == 2 else (member, 1)
    if not isinstance(primitive, takes):
        _refuse(primitive, world)
    if isinstance(member, tuple):
        _check_units(primitive, units)
    return Part(primitive, units)


def _refuse(member: Any, world: str) -> NoReturn:
    why = _ELSEWHERE.get(getattr(member, "kind", ""))
    if isinstance(member, PrimitiveBase) and (why is None or member.kind == "rwlock"):
        why = f"it is of the other world: take it from {world}, as this AllOf is"
    if why is None:
        why = "give locks, semaphores, pairs such as (semaphore, 2), and sides of RWLocks"
    raise TypeError(f"AllOf can't hold {member!r}: {why}")


def _check_units(primitive: PrimitiveBase[Any], units: object) -> None:
    if primitive.kind == "rwlock":
        raise ValueError(f"{primitive!r} has no units to choose: a reader takes one, a writer all")
    if type(units) is not int:
        raise TypeError(f"({primitive!r}, {units!r}): the second is a number of units, an int")
    if not 1 <= units <= primitive._capacity:
        raise ValueError(
            f"({primitive!r}, {units}): units must be at least 1, and {key_shown(primitive.key)} has a "
            f"capacity of {primitive._capacity}"
        )


def in_order(named: Iterable[Part]) -> list[Part]:
    """Each key once, in the order of the keys, which is the same for everybody.

    Raises `ValueError` where one is named twice and differently.
    """
    once: dict[bytes, Part] = {}
    for part in named:
        known = once.setdefault(part.key, part)
        if known is not part:
            _check_same(known, part)
            once[part.key] = known._replace(on_wait=known.on_wait or part.on_wait)
    return [once[key] for key in sorted(once)]


def _check_same(one: Part, other: Part) -> None:
    name = key_shown(one.key)
    if one.primitive.kind == "rwlock" and one.primitive._units != other.primitive._units:
        raise ValueError(f"{name} is named for reading and for writing: write() is enough for both")
    if one.units != other.units:
        raise ValueError(
            f"{name} is named twice, for {one.units} and for {other.units} units: name it once, "
            "with as many as are wanted in all"
        )
    before, after = one.differences, other.differences
    differing = [what for what in before if before[what] != after[what]]
    if differing:
        raise ValueError(
            f"{name} is named twice, with another {' and '.join(differing)}: one lease can't be held "
            "in two ways, so name it once"
        )
