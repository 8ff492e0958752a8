"""What one server knows of where directories live, and how old that is.

The rule of freshness: a grant is told only while the table is younger than `FRESH`, counted from when its
reading was *sent*, and only if it says of the key what it said when the command left. So once a step of a
move is written and `settled_after` has passed, no server acts on what was before: it has read of the step, or
tells no grant. That there is nothing is told only by a reading that was sent after the command, and only if
that, too, says of the key what was said when the command left: what was granted at the new place before the
command came is then found there. Everything else is told by any table, as nobody loses by it.

That something is renewed is among that, so leases go on where the records can't be read. But to somebody who
was never told of the grant it *is* the grant: of an id whose grant this server has withheld, or the fate of
whose Acquire it does not know (`untold`), it is held to the rule for grants until that was told, and so is
what a Resize tells. No other server knows of that; so guards stay at the old place while somebody waits
behind them, who could be granted something there (`mover`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dibs.core.names import is_wait
from dibs.model import Gone, Granted, Lost, Refused, Renewed, Reply, Revoked, Status, Unknown
from dibs.server.placing.choice import around
from dibs.server.placing.guards import may_be_guarded
from dibs.server.placing.home import Home
from dibs.server.placing.listing import Listing

FRESH = 3.0
"""Seconds for which a table may be believed."""

FRESH_ALONE = 15.0
"""The same, while there is one placement: nothing moves until all who believe that have heard of another."""

READ_EVERY = 0.5
"""How often each server asks whether there is news."""


def settled_after(fresh: float) -> float:
    """How long after a step was written every server knows of it, or tells no grant; by any clock."""
    return 1.02 * fresh + 0.25


@dataclass(frozen=True, slots=True)
class Table:
    """Where directories live. What lives nowhere in particular is at `default`."""

    listing: Listing
    homes: Mapping[bytes, Home] = field(default_factory=dict[bytes, Home])
    """By directory."""
    read_at: float = float("-inf")
    """When the reading was sent, by this server's clock."""
    default: Home = field(init=False)
    """Where what lives nowhere in particular lives."""
    is_lone: bool = field(init=False)
    """There is one store, in which everything has always been."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "default", Home(self.listing.default))
        object.__setattr__(self, "is_lone", self.listing.is_lone and not self.homes)

    def home_of(self, key: bytes) -> Home:
        """Where a key lives; clients' own signs to each other are at the default place always."""
        homes = self.homes
        if not homes:
            return self.default
        if is_wait(key):
            return self.default
        for each in around(key.partition(b":")[2]):
            found = homes.get(each)
            if found is not None:
                return found
        return self.default

    def places_of(self, prefix: bytes) -> set[str]:
        """Where keys that begin so may be held: no other placement has to be there to list them."""
        if is_wait(prefix):
            return {self.default.place}
        _, colon, name = prefix.partition(b":")
        within = [home for each, home in self.homes.items() if each.startswith(name)]
        around_it = self.home_of(prefix) if colon else self.default
        return {place for home in (around_it, *within) for place in home.places}

    def owns(self, directory: bytes, key: bytes) -> bool:
        """Whether a key lives where that directory does, and not where one within it does."""
        name = key.partition(b":")[2]
        return next((each == directory for each in around(name) if each in self.homes), False)

    def aged(self, read_at: float) -> "Table":
        """The same, as read later."""
        return Table(self.listing, self.homes, read_at)

    def has_forgotten(self, before: "Table") -> bool:
        """Whether less has happened by it than by one that was read before: something was lost."""
        return not before.listing.stores <= self.listing.stores or any(
            each not in self.homes or self.homes[each].step < home.step
            for each, home in before.homes.items()
        )


def may_tell(
    reply: Reply,
    sent_by: Home,
    home: Home,
    *,
    is_fresh: bool,
    was_read_since: bool,
    is_untold: bool = False,
) -> bool:
    """Whether a reply may be told, by what the table says now. See the module.

    `was_read_since`: the reading was sent after the command. `is_untold`: that its id holds may never have
    been told.
    """
    if type(reply) is Granted or (is_untold and type(reply) is Renewed):
        return is_fresh and home.where == sent_by.where
    return not is_denial(reply) or (was_read_since and home.where == sent_by.where)


def is_denial(reply: Reply) -> bool:
    """Whether it says that there is nothing, where there may be something at another place."""
    match reply:
        case Lost() | Unknown() | Gone():
            return True
        case Refused(holders=holders):
            return may_be_guarded(holders)
        case Status(holders=holders):
            return not holders or may_be_guarded(holders)
        case Revoked(count=count):
            return not count
        case _:
            return False
