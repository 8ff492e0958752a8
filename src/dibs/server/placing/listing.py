"""The list of placements as it is written down for all servers of one service.

Two servers that take one name for two stores, or that put what lives nowhere in particular into two stores,
both grant. So a name is bound to its store when it is first written down, for good, and all of it goes by the
record: the settings of a server only say which of those stores it can reach. What is listed is never
removed; a placement that no server's settings have any more is only a name that is taken.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct, structs

from dibs.errors import NotConfigured
from dibs.server.placing.home import Home
from dibs.server.placing.placement import Place
from dibs.stores.http.names import decoded, encoded

_ROOT = "/"
"""The record name of everything, as a name is at least one character long."""


def record_name(directory: bytes) -> str:
    """What a directory is called in the records."""
    return encoded(directory) if directory else _ROOT


def directory_of(name: str) -> bytes:
    """The directory that is called so there."""
    return b"" if name == _ROOT else decoded(name)


class Listed(Struct, frozen=True, omit_defaults=True):
    """A placement. All of it that people may see."""

    name: str
    stores: tuple[str, ...]
    """Where its store is, or was while it was the same one: see `address`."""
    provider: str = ""
    region: str = ""
    nameless: bool = False
    """Whoever wrote it down had one store only, and no name for it."""

    @property
    def place(self) -> Place:
        """As restrictions see it."""
        return Place(self.name, self.provider, self.region)


class Listing(Struct, frozen=True, omit_defaults=True):
    """All of them, in the order in which they were first written down."""

    places: tuple[Listed, ...]
    default: str
    """Where what lives nowhere in particular lives."""
    fresh: float
    """The longest that a server of this service goes on by what it has read."""
    was_lone: bool = False
    """There was one placement only, and a running server may not have heard of another."""
    homes: dict[str, Home] = {}
    """Where directories live that were ever moved, by their record names."""
    mark: str = ""
    """Names the marker in the first store that there are several placements: see `markers`."""

    def homes_by_directory(self) -> dict[bytes, Home]:
        """The homes, by directory."""
        return {directory_of(name): home for name, home in self.homes.items()}

    @property
    def is_lone(self) -> bool:
        """There is one placement only, so nothing can move."""
        return len(self.places) == 1

    @property
    def stores(self) -> frozenset[str]:
        """All that is written down of where stores are."""
        return frozenset(store for each in self.places for store in each.stores)

    def of_store(self, address: str) -> Listed | None:
        """The placement whose store that is."""
        return next((each for each in self.places if address in each.stores), None)


@dataclass(frozen=True, slots=True)
class Own:
    """A placement as one server's settings have it."""

    place: Place
    address: str
    was: tuple[str, ...] = ()
    """Where that store was until now, if somebody says so: as it may be spelt."""
    nameless: bool = False


def joined(
    listing: Listing | None, own: Sequence[Own], fresh: float, used: Mapping[str, str]
) -> Listing:
    """The list once a server with these settings has come: written down before it grants anything.

    `used` says, by placement, what lives there. Raises `NotConfigured` for settings that do not go together
    with what is written down.
    """
    if listing is None:
        first = tuple(_new(each) for each in own)
        mark = secrets.token_hex(16)
        return Listing(first, first[0].name, fresh, was_lone=len(first) == 1, mark=mark)
    listing = _renamed(listing, own)
    places = {each.name: each for each in listing.places}
    for each in own:
        found = listing.of_store(each.address)
        if found is None or not each.nameless:
            places[each.place.name] = _bound(each, places.get(each.place.name), found)
    fresh = max(listing.fresh, fresh)
    was_lone = listing.was_lone or listing.is_lone
    after = structs.replace(listing, places=tuple(places.values()), fresh=fresh, was_lone=was_lone)
    _check_complete(after, own, used)
    return after


def check_each_once(own: Sequence[Own]) -> None:
    """Raises `NotConfigured` for settings that have one store twice."""
    by_store: dict[str, str] = {}
    for each in own:
        other = by_store.setdefault(each.address, each.place.name)
        if other != each.place.name:
            raise NotConfigured(
                f"placements {other} and {each.place.name} are one store, {each.address}: leave one out"
            )


def _renamed(listing: Listing, own: Sequence[Own]) -> Listing:
    """The only placement gets a name, if it has none: nothing can have been said of it by another."""
    (only, *others) = listing.places
    if others or not only.nameless:
        return listing
    for each in own:
        if each.address in only.stores and not each.nameless:
            name = each.place.name
            return structs.replace(
                listing, places=(structs.replace(only, name=name),), default=name
            )
    return listing


def _bound(own: Own, known: Listed | None, of_store: Listed | None) -> Listed:
    """A placement of the settings, as it is written down. Raises `NotConfigured`."""
    place = own.place
    if of_store is not None and known is not of_store:
        raise NotConfigured(
            f"placement {place.name}: its store, {own.address}, is written down as the placement "
            f"{of_store.name}: give it that name in the settings, as names stay"
        )
    if known is None:
        return _new(own)
    if own.address not in known.stores and known.stores[-1] not in own.was:
        raise NotConfigured(_another_store(own, known))
    stores = tuple(dict.fromkeys((*known.stores, own.address)))
    return Listed(place.name, stores, place.provider, place.region, nameless=own.nameless)


def _new(own: Own) -> Listed:
    place, stores = own.place, (own.address,)
    return Listed(place.name, stores, place.provider, place.region, nameless=own.nameless)


def _another_store(own: Own, known: Listed) -> str:
    """What to say to whoever has given a name to another store."""
    name, before = own.place.name, known.stores[-1]
    said = "store" if own.nameless else f"placement {name}"
    where, on, _ = own.address.partition(" on ")
    machines = (
        "A SQLite file, or a store at localhost, is another one on each machine: give a URL that leads to "
        "the same store from all of them. "
    )
    only_here = machines if on and where == before.partition(" on ")[0] else ""
    return (
        f"the {said} of these settings is {own.address}, and all servers of this service know it at "
        f"{before}. {only_here}If that is another store, locks would be held in both: keep the old "
        f"one, add the new one as a [[placement]] with a name of its own, and `dibs move / --to` it. If "
        f"it is the same store at another address, say so: was = {before!r} in [[placement]] name = {name!r}"
    )


def _check_complete(listing: Listing, own: Iterable[Own], used: Mapping[str, str]) -> None:
    """What is in use has to be there. Raises `NotConfigured`."""
    here = {listing.of_store(each.address) for each in own}
    for each in listing.places:
        if each in here:
            continue
        lives = used.get(each.name) or (
            "what lives nowhere in particular" if each.name == listing.default else ""
        )
        if lives:
            raise NotConfigured(
                f"these settings lack the placement {each.name} ({each.stores[-1]}), where {lives} "
                "lives: add it; to do without it, move everything away first, then take it out"
            )
