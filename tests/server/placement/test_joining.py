"""The list of placements: whatever settings say, no two servers mean different stores."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given
from hypothesis import settings as chosen
from hypothesis import strategies as st
from msgspec import structs

from dibs.errors import NotConfigured
from dibs.server.config import read_config
from dibs.server.placement.joining import OwnPlacement, check_each_once, joined
from dibs.server.placement.registry import PlacementList, RecordedPlacement
from dibs.server.placement.rules import Place

FRESH = 3.0
ADDRESSES = {"at-1": 1, "also-at-1": 1, "at-2": 2, "at-3": 3}
"""Which store is at each."""


def own(name: str, address: str, was: str = "", region: str = "") -> OwnPlacement:
    said = (was,) if was else ()
    return OwnPlacement(Place(name, "", region), address, said)


# ---- any settings, started and ended in any order -------------------------------------------------

type Settings = tuple[OwnPlacement, ...]
type Join = Callable[[PlacementList | None, Settings, float, dict[str, str]], PlacementList]

placements = st.builds(
    own,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(sorted(ADDRESSES)),
    st.sampled_from(["", *sorted(ADDRESSES)]),
)
"""What they say of where a store was may be left from another time, and so be wrong."""
settings = st.one_of(
    st.sampled_from(sorted(ADDRESSES)).map(lambda address: (own("default", address),)),
    st.lists(placements, min_size=1, max_size=3, unique_by=lambda each: each.place.name).map(tuple),
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("start"), settings),
        st.tuples(st.just("end"), st.integers(0, 3)),
        st.tuples(st.just("move"), st.sampled_from(["x/", "y/", ""]), st.integers(0, 5)),
    ),
    max_size=12,
)


@dataclass
class Service:
    """Its list, where things live by it, and where they were put in truth."""

    join: Join
    listing: PlacementList | None = None
    running: list[Settings] = field(default_factory=list)
    homes: dict[str, str] = field(default_factory=dict)
    truth: dict[str, int] = field(default_factory=dict)

    def start(self, theirs: Settings) -> None:
        if any(self.is_false(each) for each in theirs):
            return
        used = {place: directory for directory, place in self.homes.items()}
        try:
            check_each_once(theirs)
            self.listing = self.join(self.listing, theirs, FRESH, used)
        except NotConfigured:
            return
        self.running.append(theirs)
        self.truth.setdefault("elsewhere", self.store_of(theirs, self.listing.default) or 0)

    def is_false(self, own: OwnPlacement) -> bool:
        """Whether `was` denies what is true of where the store is now, which nobody could detect."""
        places = () if self.listing is None else self.listing.places
        newest = {each.name: each.stores[-1] for each in places}.get(own.place.name)
        return newest in own.was and ADDRESSES[newest or ""] != ADDRESSES[own.address]

    def end(self, number: int) -> None:
        if number < len(self.running):
            self.running.pop(number)

    def move(self, directory: str, number: int) -> None:
        """As one server's mover does it, which settles where everything lives by default too."""
        if self.listing is None or not self.running or self.listing.is_lone:
            return
        place = self.listing.places[number % len(self.listing.places)].name
        store = self.store_of(self.running[0], place)
        if store is None:
            return
        self.homes[directory], self.truth[directory] = place, store
        if not directory:
            self.listing = structs.replace(self.listing, default=place)
            self.truth["elsewhere"] = store

    def store_of(self, theirs: Settings, place: str) -> int | None:
        """Where a server looks for what lives at a placement; None: it says that it lacks that."""
        assert self.listing is not None
        (listed,) = (each for each in self.listing.places if each.name == place)
        here = {ADDRESSES[each.address] for each in theirs if each.address in listed.stores}
        assert len(here) <= 1, "one name, two stores"
        return next(iter(here), None)

    def check(self) -> None:
        """All servers that run look for everything where it was put."""
        if self.listing is None:
            return
        for theirs in self.running:
            for directory, place in {**self.homes, "elsewhere": self.listing.default}.items():
                assert self.store_of(theirs, place) in (None, self.truth[directory])


def played(join: Join, what: list[tuple[object, ...]]) -> None:
    service = Service(join)
    for name, *values in what:
        getattr(service, str(name))(*values)
        service.check()


LONG_AGO: list[tuple[object, ...]] = [
    ("start", (own("a", "at-1"),)),
    ("start", (own("a", "also-at-1", was="at-1"),)),
    ("start", (own("a", "at-2", was="at-1"),)),
]
"""Rarely drawn: `was` is an address of long ago, which is another store's by now."""


@given(events)
@example(LONG_AGO)
def test_no_two_servers_mean_different_stores(what: list[tuple[object, ...]]) -> None:
    played(joined, what)


def last_wins(
    listing: PlacementList | None, theirs: Settings, fresh: float, used: dict[str, str]
) -> PlacementList:
    """A mistake: settings are believed, and what they lack is dropped."""
    places = tuple(RecordedPlacement(each.place.name, (each.address,)) for each in theirs)
    return PlacementList(places, places[0].name, fresh)


def believing(was: Callable[[OwnPlacement, tuple[str, ...]], tuple[str, ...]]) -> Join:
    """A mistake: settings are taken to say this of where a store was."""

    def join(
        listing: PlacementList | None, theirs: Settings, fresh: float, used: dict[str, str]
    ) -> PlacementList:
        known = {each.name: each.stores for each in listing.places} if listing else {}
        said = [replace(each, was=was(each, known.get(each.place.name, ()))) for each in theirs]
        return joined(listing, said, fresh, used)

    return join


any_address = believing(lambda _, stores: stores[-1:])
old_addresses = believing(lambda own, stores: stores[-1:] if {*own.was} & {*stores} else own.was)


@pytest.mark.parametrize("mistake", [last_wins, any_address])
def test_planted_mistakes_are_found(mistake: Join) -> None:
    @chosen(max_examples=1000, database=None, deadline=None, report_multiple_bugs=False)
    @given(events)
    def play(what: list[tuple[object, ...]]) -> None:
        played(mistake, what)

    with pytest.raises((AssertionError, ValueError)):
        play()
    with pytest.raises(AssertionError):
        played(old_addresses, LONG_AGO)


# ---- what is refused, and why ---------------------------------------------------------------------


def after(*starts: Settings) -> PlacementList:
    listing: PlacementList | None = None
    for theirs in starts:
        listing = joined(listing, theirs, FRESH, {})
    assert listing is not None
    return listing


A, B = own("a", "at-1"), own("b", "at-2")
LONE = own("default", "at-1")


def test_settings_that_contradict_the_list_are_refused() -> None:
    both, grown = after((A, B)), after((LONE,), (B, LONE))
    moved = r"placement b .* is at-3, .* know it at at-2.*was = 'at-2'"
    lacking = r"lack the placement b \(at-2\), where shop/ lives"
    for recorded, theirs, reason in (
        (both, (A, own("b", "at-3")), moved),
        (both, (own("a2", "at-1"), B), "written down as the placement a"),
        (both, (A,), lacking),
        (both, (B,), r"lack the placement a .* nowhere in particular"),
        (grown, (A, B), "written down as the placement default"),
    ):
        with pytest.raises(NotConfigured, match=reason):
            joined(recorded, theirs, FRESH, {"b": "shop/"})


def test_settings_that_agree_with_the_list_leave_it_as_it_is_or_add_to_it() -> None:
    here = own("a", "also-at-1", was="at-1")
    both, moved = after((A, B)), after((A,), (here,))
    assert joined(both, (B, A), FRESH, {}) == both, "in another order"
    assert joined(both, (A,), FRESH, {}) == both, "what is not in use may be left out"
    for either in (here, A, own("a", "at-1", was="at-3")):
        assert joined(moved, (either,), FRESH, {}) == moved, "both ways lead there"
    grown = after((LONE,), (B, LONE))
    assert (grown.default, grown.was_lone, both.was_lone) == ("default", True, False)
    german = own("a", "at-1", region="DE")
    later = joined(after((A,)), (german,), 9.0, {})
    assert (later.fresh, later.places[0].region) == (9.0, "DE"), "the longest, and the last"
    assert joined(later, (german,), 1.0, {}) == later


def test_several_stores_need_records_that_do_not_follow_their_order() -> None:
    both = [{"name": "a", "url": "redis://me:hunter2@h"}, {"name": "b", "url": "redis://i"}]
    with pytest.raises(NotConfigured, match=r"records = .*redis://me:\*\*\*@h") as caught:
        read_config(None, {"placement": both}, {})
    assert "hunter2" not in str(caught.value)
    assert read_config(None, {"placement": both, "records": "redis://h"}, {}).records == "redis://h"
    assert read_config(None, {"placement": both[:1]}, {}).records_url == both[0]["url"]
