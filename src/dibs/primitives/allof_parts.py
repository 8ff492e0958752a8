"""What an `AllOf` was given, as parts in the order of their keys, each key once."""

from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from dibs.config import UNSET, Unset
from dibs.primitives.ask import Ask, Terms
from dibs.primitives.messages import key_shown
from dibs.primitives.primitive import PrimitiveBase
from dibs.primitives.watching import OnWait

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
        found = self.primitive._differences()
        return found if self.ttl is None else found | {"ttl": self.ttl}

    def wish(self, priority: int | None, note: str | None, on_wait: OnWait | None) -> "Wish":
        """What is asked of the store, and how it will be held."""
        ask, terms = self.primitive._wish_for(self.units, self.ttl, priority, note)
        return Wish(self.primitive, ask, terms, on_wait or self.on_wait or self.primitive._on_wait)

    @property
    def patience(self) -> float | None:
        """How long it would be waited for."""
        return self.primitive._wait if isinstance(self.wait, Unset) else self.wait


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
