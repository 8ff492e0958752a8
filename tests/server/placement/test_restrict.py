"""Restrictions over HTTP: said, seen, refused."""

from collections.abc import Iterator
from uuid import uuid4

import httpx2
import pytest

from dibs.server.placement.rules import PlacementSettings
from tests.server.placement.asking import moved, until
from tests.server.world import World, b64

PLACES = (
    PlacementSettings(name="home", url="", provider="aws", region="DE"),
    PlacementSettings(name="away", url="", provider="GCP", region="namerica"),
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    found = World.over(
        leases="",
        placement=tuple(
            PlacementSettings(
                name=e.name, provider=e.provider, region=e.region, url=f"memory://{uuid4()}"
            )
            for e in PLACES
        ),
        placement_fresh=0.5,
    )
    yield found
    found.close()


@pytest.fixture
def admin(world: World) -> httpx2.Client:
    return world.client()


def path(directory: str, api: str = "locks") -> str:
    return f"/v1/restrict/{api}/{b64(directory)}/"


SDK = {
    "User-Agent": "python-requests/2.28.1",
    "Accept": "application/json",
    "Content-Type": "application/json",
}
"""What Seaplane's Python SDK sends."""


def test_seaplanes_sdk_gets_what_it_takes_for_success(admin: httpx2.Client) -> None:
    set_ = admin.put(path("sdk"), json={"providers_denied": ["digitalocean"]}, headers=SDK)
    assert (set_.status_code, set_.json()) == (200, "Ok")
    seen = admin.get(path("sdk"), headers=SDK).json()
    assert seen["details"]["providers_denied"] == ["DIGITALOCEAN"]
    listed = admin.get("/v1/restrict/locks", headers=SDK)
    assert listed.json()["restrictions"] == [seen]
    assert admin.delete(path("sdk"), headers=SDK).json() == "Ok"


def test_a_restriction_is_set_seen_and_deleted(admin: httpx2.Client) -> None:
    made = admin.put(path("a"), json={"regions_allowed": ["europe"], "providers_denied": ["gcp"]})
    assert (made.status_code, made.json()) == (200, {"status": 200, "title": "Ok"})
    seen = admin.get(path("a", "LOCKS")).json()
    assert seen == {
        "api": "Locks",
        "directory": b64("a").removeprefix("base64:"),
        "details": {
            "regions_allowed": ["XE"],
            "regions_denied": [],
            "providers_allowed": [],
            "providers_denied": ["GCP"],
        },
        "state": "Enforced",
        "placement": "home",
    }
    assert admin.delete(path("a")).status_code == 200
    assert admin.get(path("a")).status_code == 404
    assert admin.delete(path("a")).status_code == 404


@pytest.mark.parametrize(
    ("rule", "status", "told"),
    [
        ({"regions_allowed": ["XE"], "regions_denied": ["eu"]}, 400, "XE: both allowed and denied"),
        ({"regions_allowed": ["atlantis"]}, 400, "unknown region 'atlantis'"),
        (
            {"providers_denied": ["AWS", "gcp"]},
            409,
            "provider AWS is denied, by the restriction on",
        ),
        ({"regions": []}, 400, "unknown field"),
        ({"regions_allowed": "XE"}, 400, "Expected `array`"),
    ],
)
def test_what_cant_be_is_refused(
    admin: httpx2.Client, rule: dict[str, object], status: int, told: str
) -> None:
    answer = admin.put(path("b"), json=rule)
    assert answer.status_code == status
    assert told in answer.json()["detail"]


def test_the_config_api_is_refused_with_a_word(admin: httpx2.Client) -> None:
    answer = admin.put(path("b", "config"), json={})
    assert answer.status_code == 400
    told = "only Locks can be restricted: write locks instead of 'config'"
    assert answer.json()["detail"] == told


def test_who_has_said_no_region_is_told_how_to() -> None:
    world = World.over()
    answer = world.client().put(path("b"), json={"regions_allowed": ["XE"]})
    world.close()
    assert answer.status_code == 409
    assert 'set region = "DE" in its [[placement]]' in answer.json()["detail"]


def test_a_directory_within_is_bound_by_those_around_it(admin: httpx2.Client) -> None:
    assert admin.put(path("c"), json={"regions_allowed": ["XE"]}).status_code == 200
    refused = admin.put(path("c/d"), json={"regions_allowed": ["XN"]})
    assert refused.status_code == 409
    assert "home (AWS, DE)" in refused.json()["detail"]
    assert admin.put(path("c/d"), json={"providers_allowed": ["AWS"]}).status_code == 200
    around = admin.put(path("c"), json={"regions_allowed": ["XN"]})
    assert "c/d/" in around.json()["detail"]


def test_lists_come_in_pages_and_show_ones_own(world: World, admin: httpx2.Client) -> None:
    for number in range(102):
        assert admin.put(path(f"list/{number:03}"), json={}).status_code == 200
    found: list[str] = []
    query: dict[str, str] = {}
    while True:
        page = admin.get("/v1/restrict/", params=query).json()
        found += [each["directory"] for each in page["restrictions"]]
        if page["next_key"] is None:
            break
        query = {"from": f"base64:{page['next_key']}", "from_api": page["next_api"]}
    assert len(set(found)) == len(found) >= 102
    reader = world.client("read", prefixes=[b"list/007/"])
    (only,) = reader.get("/v1/restrict/locks/").json()["restrictions"]
    assert only["directory"] == b64("list/007").removeprefix("base64:")
    assert reader.get(path("list/008")).status_code == 404
    assert reader.put(path("list/007"), json={}).status_code == 403
    assert admin.get("/v1/restrict", params={"from": "base64:YQ"}).status_code == 400


def test_a_move_to_nowhere_and_one_that_may_not_be(admin: httpx2.Client) -> None:
    admin.put(path("e"), json={"regions_allowed": ["XE"]})
    nowhere = admin.put(f"/v1/move/{b64('e')}/", json={"to": "moon"})
    assert (nowhere.status_code, "placements: home, away" in nowhere.json()["detail"]) == (
        400,
        True,
    )
    assert admin.put(f"/v1/move/{b64('e')}/", json={"to": "away"}).status_code == 409
    names = [each["name"] for each in admin.get("/v1/placements").json()["placements"]]
    assert names == ["home", "away"]


@pytest.mark.once
def test_a_restriction_counts_for_more_than_a_wish_and_progress_says_so(
    admin: httpx2.Client,
) -> None:
    where = f"/v1/move/{b64('f')}/"
    assert admin.put(where, json={"to": "home"}).status_code == 200
    assert admin.put(path("f"), json={"regions_allowed": ["XN"]}).status_code == 200
    assert admin.get(where).json()["to"] == "away"
    until(lambda: admin.get(path("f")).json()["state"] == "Enforced")
    until(lambda: moved(admin, "f", "away"))
    assert admin.get(where).json()["to"] == "", "whoever waits for it waits no longer"


@pytest.mark.parametrize(
    ("method", "route", "body"),
    [
        ("GET", "locks", None),
        ("GET", "move", None),
        ("PUT", "move", {"to": "home"}),
        ("GET", "restrict/locks", None),
        ("PUT", "restrict/locks", {"regions_allowed": ["XE"]}),
        ("DELETE", "restrict/locks", None),
    ],
)
def test_a_directory_has_one_spelling(
    admin: httpx2.Client, method: str, route: str, body: object
) -> None:
    """With its slash encoded it would be another directory, and the right one not be restricted."""
    answer = admin.request(method, f"/v1/{route}/{b64('gdpr/')}/", json=body)
    assert answer.status_code == 400
    assert f"without the slash at its end: {b64('gdpr')}/" in answer.json()["detail"]


@pytest.mark.parametrize(("region", "is_known"), [("UA", False), ("AT", True), ("rack 7", True)])
def test_a_country_in_no_known_region_is_told_at_the_start(
    region: str, is_known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    place = PlacementSettings(name="kyiv", url=f"memory://{uuid4()}", region=region)
    World.over(leases="", placement=(place,)).close()
    assert (
        f"placement kyiv: region = {region!r} is in none of the regions" in caplog.text
    ) != is_known
