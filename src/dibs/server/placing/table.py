"""Where directories live, as one reading of the records has it.

With several placements, a server acknowledges a grant only while its reading is younger than `fresh`,
counted from when the reading was *sent*, and only if the directory has not moved meanwhile. So once
`settled_after` has passed since a directory was frozen, every server has read of it or grants nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dibs.model import Acquire, Command, Gone, Granted, Lost, Renew, Reply, Revoked, Status, Unknown
from dibs.server.placing.choice import around
from dibs.server.placing.home import Home
from dibs.server.placing.listing import Listing

FRESH = 3.0
"""Seconds that a reading is good for, with several placements."""

FRESH_ALONE = 15.0
"""Seconds that "there is one placement" is good for, by the records or by the store itself: see `markers`."""

READ_EVERY = 0.5
"""Seconds between two readings."""


def settled_after(fresh: float) -> float:
    """Seconds after a step was written until every server has read it, or grants nothing; by any clock."""
    return 1.02 * fresh + 0.25


@dataclass(frozen=True, slots=True)
class Table:
    """One reading."""

    listing: Listing
    version: int = 0
    """Of the record."""
    read_at: float = float("-inf")
    """When the reading was sent, by this server's clock."""
    homes: Mapping[bytes, Home] = field(init=False)
    """By directory."""
    default: Home = field(init=False)
    """The home of every directory without one."""
    is_lone: bool = field(init=False)
    """There is one placement only, so nothing ever moved."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "homes", self.listing.homes_by_directory())
        object.__setattr__(self, "default", Home(self.listing.default))
        object.__setattr__(self, "is_lone", self.listing.is_lone)

    def home_of(self, key: bytes) -> Home:
        """Where a key lives."""
        homes = self.homes
        if not homes:
            return self.default
        for each in around(key.partition(b":")[2]):
            found = homes.get(each)
            if found is not None:
                return found
        return self.default

    def places_of(self, prefix: bytes) -> set[str]:
        """Where keys that begin so may be held: no other placement is needed to list them."""
        _, colon, name = prefix.partition(b":")
        within = [home for each, home in self.homes.items() if each.startswith(name)]
        around_it = self.home_of(prefix) if colon else self.default
        return {home.place for home in (around_it, *within)}

    def aged(self, read_at: float) -> "Table":
        """The same, as read later."""
        return Table(self.listing, self.version, read_at)


def is_grant(command: Command, reply: Reply) -> bool:
    """Whether somebody holds something by this reply that they did not hold before."""
    return type(reply) is Granted and isinstance(command, Acquire | Renew)


def is_denial(reply: Reply) -> bool:
    """Whether it says that nothing is there, while something may be at another place."""
    match reply:
        case Lost() | Unknown() | Gone():
            return True
        case Status(holders=holders):
            return not holders
        case Revoked(count=count):
            return not count
        case _:
            return False
