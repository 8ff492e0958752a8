"""The parts of a batch that go different ways on a Cluster, and how their answers come together."""

from collections.abc import Callable, Iterable, Sequence

from dibs.errors import BackendUnavailable, DibsError, Forbidden, IncompatibleVersion
from dibs.model import Command, Failed, Reply, Wakeup
from dibs.stores.redis.ledger import Call, Outcome, Terms
from dibs.stores.redis.settings import Endpoint


class Part:
    """The commands of one slot, in their order, and what has become of them."""

    __slots__ = ("answer", "asking", "call", "commands", "error", "places", "slot", "unknown")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.places: list[int] = []
        """Where in the batch the commands stand."""
        self.commands: list[Command] = []
        self.call = Call([], [])
        self.asking: Endpoint | None = None
        """The node to which this slot is just moving, where it is to be tried once."""
        self.answer: object = None
        self.error: DibsError | None = None
        self.unknown = False
        """It may have been applied, though no answer came."""

    def fail(self, error: DibsError, *, unknown: bool = False) -> None:
        """Nothing came of it in this attempt."""
        self.error = error
        self.unknown = self.unknown or unknown

    def outcome(self, terms: Terms) -> Outcome:
        """Its replies; a node that is away is `away` to those who wanted its keys."""
        if self.error is None:
            return terms.read(self.answer, self.commands)  # type: ignore[arg-type]
        return [failed(self.error) for _ in self.commands], []


def failed(error: DibsError) -> Failed:
    """What one command is told, where others of its batch are well."""
    return Failed("forbidden" if isinstance(error, Forbidden) else "away", str(error))


def split(
    commands: Sequence[Command],
    slot_of: Callable[[bytes], int],
    terms: Terms,
) -> list[Part]:
    """A batch by slots."""
    parts: dict[int, Part] = {}
    for place, command in enumerate(commands):
        slot = slot_of(command.key)
        part = parts.get(slot) or parts.setdefault(slot, Part(slot))
        part.places.append(place)
        part.commands.append(command)
    for part in parts.values():
        part.call = terms.call(part.commands)
    return list(parts.values())


def together(parts: Iterable[Part], count: int, terms: Terms) -> Outcome:
    """The replies of all parts, in the order of the batch.

    Raises where nothing was applied, and where it isn't known whether something was: the commands
    can then be sent again. Else what failed costs the others nothing.
    """
    parts = list(parts)
    errors = [part.error for part in parts if part.error is not None]
    unknown = [part.error for part in parts if part.error is not None and part.unknown]
    newer = [error for error in errors if isinstance(error, IncompatibleVersion)]
    if unknown or newer:
        raise (unknown or newer)[0]
    if errors and len(errors) == len(parts):
        unavailable = [error for error in errors if isinstance(error, BackendUnavailable)]
        raise (unavailable or errors)[0]
    replies: dict[int, Reply] = {}
    wakeups: list[Wakeup] = []
    for part in parts:
        found, pushes = part.outcome(terms)
        replies.update(zip(part.places, found, strict=True))
        wakeups += pushes
    return [replies[place] for place in range(count)], wakeups
