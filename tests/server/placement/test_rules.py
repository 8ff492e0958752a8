"""Restrictions as pure rules: what they allow, how nested ones meet, where a directory is to live."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.codec import INTEGER_LIMIT
from dibs.errors import Corrupt
from dibs.server.placement.registry import HIGHEST, SLACK, Home
from dibs.server.placement.rules import (
    Place,
    Rule,
    Unsatisfiable,
    allowed_places,
    around,
    chosen_place,
    lies_in,
    nearest,
    provider_name,
    region_code,
)

CODES = ["XA", "XE", "XN", "DE", "FR", "US", "JP"]
PROVIDERS = ["AWS", "GCP", "AZURE"]

regions = st.lists(st.sampled_from(CODES), max_size=2).map(tuple)
providers = st.lists(st.sampled_from(PROVIDERS), max_size=2).map(tuple)
rules = st.builds(Rule, regions, regions, providers, providers)
provider, region = st.sampled_from(["", *PROVIDERS]), st.sampled_from(CODES)
place = st.builds(Place, st.uuids().map(str), provider, region)
places = st.lists(place, min_size=1, max_size=4).map(tuple)
directories = st.lists(st.sampled_from([b"a/", b"b/", b"c/"]), max_size=4).map(b"".join)
trees = st.dictionaries(directories, rules, max_size=4)

EU_AND_EEA = (
    "AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IS IT LI LT LU LV MT NL NO PL PT RO SE SI SK"
)


def test_regions_and_providers_have_one_spelling_and_may_be_ones_own() -> None:
    for country in EU_AND_EEA.split():
        assert lies_in(region_code(country.lower()), "XE"), country
    assert not lies_in("GB", "XE"), "the United Kingdom is a part of its own"
    assert not lies_in("XE", "DE")
    spelt = ("eu", "Europe", "united_kingdom", "south-america")
    assert [region_code(each) for each in spelt] == ["XE", "XE", "XU", "XS"]
    assert region_code("north-america-2", ["North-America-2"]) == "North-America-2"
    with pytest.raises(ValueError, match=r"unknown region 'atlantis'") as caught:
        region_code("atlantis", ["cellar"])
    assert all(each in str(caught.value) for each in ("XA", "northamerica", "BR", "GB"))
    assert provider_name("Digital Ocean") == "DIGITALOCEAN"
    assert provider_name("our-CELLAR", ["Our-Cellar"]) == "Our-Cellar"


@given(trees, directories, places, st.data())
def test_a_choice_is_allowed_by_every_rule_around_and_stays(
    tree: dict[bytes, Rule], directory: bytes, known: tuple[Place, ...], data: st.DataObject
) -> None:
    by_hand = [
        place
        for place in known
        if all(tree[each].objection(place) is None for each in around(directory) if each in tree)
    ]
    if not by_hand:
        with pytest.raises(Unsatisfiable):
            allowed_places(tree, directory, known)
        return
    assert allowed_places(tree, directory, known) == by_hand
    names = [each.name for each in by_hand]
    pins = data.draw(st.dictionaries(directories, st.sampled_from([p.name for p in known])))
    now_at = data.draw(st.sampled_from([p.name for p in known]))
    to = chosen_place(tree, pins, directory, now_at, known)
    assert to in names
    assert chosen_place(tree, pins, directory, to, known) == to
    if now_at in names and nearest(pins, directory) not in names:
        assert to == now_at


def test_the_floor_rises_with_every_move_until_there_are_no_tokens_above() -> None:
    home = Home("one", floor=5).draining("two", 7.0)
    stays = home.overdue().staying()
    assert (home.place, home.phase, stays.phase) == ("one", "draining", "settled")
    assert stays != Home("one", floor=5), "who was answered before it drained can tell"
    assert home.overdue().moved(100) == Home("two", 1, 100 + SLACK)
    assert HIGHEST == INTEGER_LIMIT - 2**40
    assert home.moved(HIGHEST - SLACK).floor == HIGHEST
    with pytest.raises(Corrupt, match="too few"):
        home.moved(HIGHEST - SLACK + 1)
