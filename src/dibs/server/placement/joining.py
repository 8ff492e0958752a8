"""How a server's settings join the recorded list of placements, when it starts.

Two servers that use one name for two stores would both grant. So a name is bound to its store permanently
when it is first recorded, and all servers go by the record: the settings of a server only say which of
those stores it can reach. A placement is never removed from the list; one that no settings have any more
is only a name that is taken.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs

from dibs.errors import NotConfigured
from dibs.runtime.aio import AsyncRuntime
from dibs.server.audit import Audit
from dibs.server.placement.identity import store_address
from dibs.server.placement.markers import Markers
from dibs.server.placement.registry import (
    SERVICE,
    PlacementList,
    RecordedPlacement,
    read_list,
    write_list,
)
from dibs.server.placement.rules import Place, PlacementSettings, directory_shown
from dibs.server.records.port import Conflict, Records


@dataclass(frozen=True, slots=True)
class OwnPlacement:
    """A placement in one server's settings."""

    place: Place
    address: str
    was: tuple[str, ...] = ()
    """The earlier address of that store according to the settings, in each possible spelling."""


def own_placement(settings: PlacementSettings, machine: str = "") -> OwnPlacement:
    """A placement of the settings, to compare with the list. Raises `NotConfigured`.

    `machine` is the name of this machine, if servers on others may share the records.
    """
    was = [settings.was]  # as it is recorded
    if "://" in settings.was:
        with suppress(NotConfigured):  # what is recorded need not be a URL
            was.append(store_address(settings.was, machine))
    return OwnPlacement(settings.place, store_address(settings.url, machine), tuple(was))


def check_each_once(own: Sequence[OwnPlacement]) -> None:
    """Raises `NotConfigured` for settings that have one store twice."""
    by_store: dict[str, str] = {}
    for each in own:
        other = by_store.setdefault(each.address, each.place.name)
        if other != each.place.name:
            raise NotConfigured(
                f"placements {other} and {each.place.name} are one store, {each.address}: leave one out"
            )


def joined(
    recorded: PlacementList | None,
    own: Sequence[OwnPlacement],
    fresh: float,
    used: Mapping[str, str],
) -> PlacementList:
    """The list with a server's settings added. It is recorded before that server grants anything.

    `used` says, by placement, what lives there. Raises `NotConfigured` for settings that contradict the list.
    """
    if recorded is None:
        first = tuple(_new(each) for each in own)
        mark = secrets.token_hex(16)
        return PlacementList(first, first[0].name, fresh, was_lone=len(first) == 1, mark=mark)
    places = {each.name: each for each in recorded.places}
    for each in own:
        known = places.get(each.place.name)
        places[each.place.name] = _bound(each, known, recorded.of_store(each.address))
    after = structs.replace(
        recorded,
        places=tuple(places.values()),
        fresh=max(recorded.fresh, fresh),
        was_lone=recorded.was_lone or recorded.is_lone,
    )
    _check_complete(after, own, used)
    return after


def _bound(
    own: OwnPlacement, known: RecordedPlacement | None, of_store: RecordedPlacement | None
) -> RecordedPlacement:
    """A placement of the settings as it is recorded. Raises `NotConfigured`."""
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
    return RecordedPlacement(place.name, stores, place.provider, place.region)


def _new(own: OwnPlacement) -> RecordedPlacement:
    place = own.place
    return RecordedPlacement(place.name, (own.address,), place.provider, place.region)


def _another_store(own: OwnPlacement, known: RecordedPlacement) -> str:
    """The message for settings that give a name to another store."""
    name, before = own.place.name, known.stores[-1]
    where, on, _ = own.address.partition(" on ")
    machines = (
        "A SQLite file, or a store at localhost, is another one on each machine: give a URL that leads to "
        "the same store from all of them. "
    )
    only_here = machines if on and where == before.partition(" on ")[0] else ""
    return (
        f"the placement {name} of these settings is {own.address}, and all servers of this service know it "
        f"at {before}. {only_here}If that is another store, locks would be held in both: keep the old "
        f"one, add the new one as a [[placement]] with a name of its own, and `dibs move / --to` it. If "
        f"it is the same store at another address, say so: was = {before!r} in [[placement]] name = {name!r}"
    )


def _check_complete(
    listing: PlacementList, own: Iterable[OwnPlacement], used: Mapping[str, str]
) -> None:
    """Raises `NotConfigured` if the settings lack a placement that is in use."""
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


async def join(
    records: Records,
    audit: Audit,
    own: Sequence[OwnPlacement],
    stores: Mapping[str, AsyncRuntime],
    fresh: float,
) -> None:
    """Compare these placements with the list, and record those that are new. `stores` are by address.

    Raises `NotConfigured` if they contradict each other. Raises `BackendUnavailable` if a new store cannot be
    reached: its URL may be misspelt, and would be recorded permanently.
    """
    while True:
        recorded, version = await read_list(records)
        used = {} if recorded is None else _used_places(recorded)
        after = joined(recorded, own, fresh, used)
        if after == recorded:
            return
        for address in after.stores - (recorded.stores if recorded else frozenset()):
            await stores[address].ready()
        if recorded is not None:  # the first server changes nothing
            if recorded.is_lone and not after.is_lone:  # first for servers without the records
                only = [stores[address] for address in recorded.stores & stores.keys()]
                for each in only:
                    await each.ready()
                await Markers(only.copy).put(recorded.mark)
            places = {each.name: list(each.stores) for each in after.places}
            await audit.write(SERVICE, "placements changed", detail=places)
        with suppress(Conflict):  # another server started at the same time
            await write_list(records, after, version)


def _used_places(listing: PlacementList) -> dict[str, str]:
    """A directory that lives at each placement, or moves from or to it."""
    used: dict[str, str] = {}
    for directory, home in sorted(listing.homes_by_directory().items(), reverse=True):
        for place in filter(None, (home.place, home.to)):
            used[place] = directory_shown(directory)
    return used
