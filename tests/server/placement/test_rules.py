"""Restrictions as pure rules: what they allow, how nested ones meet, where a directory is to live."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.codec import INTEGER_LIMIT
from dibs.errors import Corrupt
from dibs.server.placement.registry import HIGHEST, SLACK, Home, PlacementList, record_name
from dibs.server.placement.rules import (
    REGIONS,
    Place,
    Rule,
    Unsatisfiable,
    allowed_places,
    around,
    chosen_place,
    lies_in,
    lives_in,
    nearest,
    provider_name,
    region_code,
)
from dibs.server.placement.table import RoutingTable

CODES = ["XA", "XE", "XN", "DE", "FR", "US", "JP"]
PROVIDERS = ["AWS", "GCP", "AZURE"]

some = st.lists(st.sampled_from(CODES), max_size=2).map(tuple)
whose = st.lists(st.sampled_from(PROVIDERS), max_size=2).map(tuple)
rules = st.builds(Rule, some, some, whose, whose)
places = st.lists(
    st.builds(
        Place, st.uuids().map(str), st.sampled_from(["", *PROVIDERS]), st.sampled_from(CODES)
    ),
    min_size=1,
    max_size=4,
).map(tuple)
directories = st.lists(st.sampled_from([b"a/", b"b/", b"c/"]), max_size=4).map(b"".join)
trees = st.dictionaries(directories, rules, max_size=4)

EU_AND_EEA = (
    "AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IS IT LI LT LU LV MT NL NO PL PT RO SE SI SK"
)


def test_countries_of_the_eu_and_the_eea_are_in_europe() -> None:
    for country in EU_AND_EEA.split():
        assert lies_in(country, "XE"), country
        assert region_code(country.lower()) == country
    assert not lies_in("GB", "XE"), "the United Kingdom is a part of its own"
    assert not lies_in("XE", "DE")


SPELLINGS = {
    **dict.fromkeys(("eu", "Europe"), "XE"),
    **dict.fromkeys(("xn", "North America"), "XN"),
    **dict.fromkeys(("unitedKingdom", "united_kingdom"), "XU"),
    "PRC": "XC",
    "de": "DE",
    "south-america": "XS",
}


def test_regions_and_providers_have_one_spelling_and_may_be_ones_own() -> None:
    assert {text: region_code(text) for text in SPELLINGS} == SPELLINGS
    assert region_code("north-america-2", ["North-America-2"]) == "North-America-2"
    with pytest.raises(ValueError, match=r"unknown region 'atlantis'") as caught:
        region_code("atlantis", ["cellar"])
    assert all(each in str(caught.value) for each in (*REGIONS, "northamerica", "BR", "GB"))
    assert provider_name("digitalocean") == provider_name("Digital Ocean") == "DIGITALOCEAN"
    assert provider_name("our-CELLAR", ["Our-Cellar"]) == "Our-Cellar"
    with pytest.raises(ValueError, match="unknown provider"):
        provider_name("our-cellar")


@given(trees, directories, places)
def test_what_is_allowed_is_allowed_by_every_rule_around(
    tree: dict[bytes, Rule], directory: bytes, known: tuple[Place, ...]
) -> None:
    by_hand = [
        place
        for place in known
        if all(tree[each].objection(place) is None for each in around(directory) if each in tree)
    ]
    if by_hand:
        assert allowed_places(tree, directory, known) == by_hand
    else:
        with pytest.raises(Unsatisfiable):
            allowed_places(tree, directory, known)


@given(trees, directories, places, st.data())
def test_a_choice_is_allowed_and_stays(
    tree: dict[bytes, Rule], directory: bytes, known: tuple[Place, ...], data: st.DataObject
) -> None:
    pins = data.draw(st.dictionaries(directories, st.sampled_from([p.name for p in known])))
    now_at = data.draw(st.sampled_from([p.name for p in known]))
    try:
        to = chosen_place(tree, pins, directory, now_at, known)
    except Unsatisfiable:
        return
    names = [each.name for each in allowed_places(tree, directory, known)]
    assert to in names
    assert chosen_place(tree, pins, directory, to, known) == to
    if now_at in names and nearest(pins, directory) not in names:
        assert to == now_at


@given(rules, places)
def test_to_deny_more_allows_no_more(rule: Rule, known: tuple[Place, ...]) -> None:
    stricter = replace(rule, regions_denied=(*rule.regions_denied, "XE"), providers_denied=("AWS",))
    looser = replace(rule, providers_denied=())
    for place in known:
        assert stricter.objection(place) is not None or looser.objection(place) is None


def table_of(default: str, homes: dict[bytes, Home]) -> RoutingTable:
    by_name = {record_name(each): home for each, home in homes.items()}
    return RoutingTable(PlacementList((), default, 3.0, homes=by_name))


def test_a_name_lives_where_the_innermost_directory_does() -> None:
    homes = {b"a/": Home("one"), b"a/b/": Home("two"), b"": Home("three")}
    table = table_of("zero", homes)
    for name, place in ((b"a/x", "one"), (b"a/b/x", "two"), (b"a/bx", "one"), (b"x", "three")):
        assert table.home_of(b"lock:" + name).place == place
    assert [lives_in(homes, name) for name in (b"a/x", b"a/b/x")] == [b"a/", b"a/b/"]


@given(
    st.dictionaries(directories, st.sampled_from("123").map(Home), max_size=4),
    st.sampled_from([b"lock:", b"rwlock:"]),
    directories,
    st.sampled_from([b"", b"x", b"a"]),
    st.integers(0, 12),
)
def test_a_list_needs_only_the_places_of_what_is_in_it(
    homes: dict[bytes, Home], kind: bytes, directory: bytes, last: bytes, cut: int
) -> None:
    table = table_of("0", homes)
    key = kind + directory + last
    assert table.home_of(key).place in table.places_of(key[: cut or len(key)])
    if not any(each.startswith(directory) for each in homes):
        assert table.places_of(kind + directory) == {table.home_of(kind + directory).place}


def test_the_floor_rises_with_every_move() -> None:
    home = Home("one", floor=5).draining("two", 7.0)
    stays = home.overdue().staying()
    assert (home.place, home.phase, stays.phase) == ("one", "draining", "settled")
    assert stays != Home("one", floor=5), "who was answered before it drained can tell"
    after = home.overdue().moved(100)
    assert after == Home("two", 1, 100 + SLACK)


def test_no_floor_leaves_no_tokens_above_it() -> None:
    assert HIGHEST == INTEGER_LIMIT - 2**40
    home = Home("one").draining("two", 0.0)
    assert home.moved(HIGHEST - SLACK).floor == HIGHEST
    with pytest.raises(Corrupt, match="too few"):
        home.moved(HIGHEST - SLACK + 1)
