"""Restrictions over HTTP: said, seen, refused."""

from collections.abc import Iterator
from contextlib import closing

import httpx2
import pytest

from tests.server.placement.asking import memory, moved, until
from tests.server.world import World, b64


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    places = (
        memory("home", provider="aws", region="DE"),
        memory("away", provider="GCP", region="namerica"),
    )
    with closing(World.over(leases="", placement=places, placement_fresh=0.5)) as world:
        yield world


@pytest.fixture
def admin(world: World) -> httpx2.Client:
    return world.client()


def path(directory: str, api: str = "locks") -> str:
    return f"/v1/restrict/{api}/{b64(directory)}/"


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


def test_seaplanes_sdk_gets_what_it_takes_for_success(admin: httpx2.Client) -> None:
    media = {"Accept": "application/json", "Content-Type": "application/json"}
    sdk = {"User-Agent": "python-requests/2.28.1", **media}
    answer = admin.put(path("sdk"), json={"providers_denied": ["digitalocean"]}, headers=sdk)
    assert (answer.status_code, answer.json()) == (200, "Ok")
    assert admin.delete(path("sdk"), headers=sdk).json() == "Ok"


@pytest.mark.parametrize(
    ("rule", "status", "reason"),
    [
        ({"regions_allowed": ["XE"], "regions_denied": ["eu"]}, 400, "XE: both allowed and denied"),
        ({"regions_allowed": ["atlantis"]}, 400, "unknown region 'atlantis'"),
        ({"providers_denied": ["AWS", "gcp"]}, 409, "AWS is denied, by the restriction on"),
        ({"regions": []}, 400, "unknown field"),
        ({"regions_allowed": "XE"}, 400, "Expected `array`"),
    ],
)
def test_impossible_restrictions_are_refused(
    admin: httpx2.Client, rule: dict[str, object], status: int, reason: str
) -> None:
    answer = admin.put(path("b"), json=rule)
    assert answer.status_code == status
    assert reason in answer.json()["detail"]


def test_the_config_api_is_refused(admin: httpx2.Client) -> None:
    answer = admin.put(path("b", "config"), json={})
    assert answer.status_code == 400
    assert "only Locks can be restricted" in answer.json()["detail"]


def test_without_regions_in_settings_the_refusal_says_what_to_set() -> None:
    with closing(World.over()) as world:
        answer = world.client().put(path("b"), json={"regions_allowed": ["XE"]})
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
        query |= {"from": f"base64:{page['next_key']}", "from_api": page["next_api"]}
    assert len(set(found)) == len(found) >= 102
    reader = world.client("read", prefixes=[b"list/007/"])
    (only,) = reader.get("/v1/restrict/locks/").json()["restrictions"]
    assert only["directory"] == b64("list/007").removeprefix("base64:")
    assert reader.get(path("list/008")).status_code == 404
    assert reader.put(path("list/007"), json={}).status_code == 403
    assert admin.get("/v1/restrict", params={"from": "base64:YQ"}).status_code == 400


def test_a_move_to_an_unknown_or_forbidden_placement(admin: httpx2.Client) -> None:
    admin.put(path("e"), json={"regions_allowed": ["XE"]})
    nowhere = admin.put(f"/v1/move/{b64('e')}/", json={"to": "moon"})
    assert nowhere.status_code == 400
    assert "placements: home, away" in nowhere.json()["detail"]
    assert admin.put(f"/v1/move/{b64('e')}/", json={"to": "away"}).status_code == 409
    names = [each["name"] for each in admin.get("/v1/placements").json()["placements"]]
    assert names == ["home", "away"]


@pytest.mark.once
def test_a_restriction_counts_for_more_than_a_move(
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
    ("method", "route"),
    [
        *(("GET", "locks"), ("GET", "move"), ("PUT", "move")),
        *(("GET", "restrict/locks"), ("PUT", "restrict/locks"), ("DELETE", "restrict/locks")),
    ],
)
def test_a_directory_has_one_spelling(admin: httpx2.Client, method: str, route: str) -> None:
    """With its slash encoded it would be another directory, and the right one not be restricted."""
    answer = admin.request(method, f"/v1/{route}/{b64('gdpr/')}/", json={"to": "home"})
    assert answer.status_code == 400
    assert f"without the slash at its end: {b64('gdpr')}/" in answer.json()["detail"]


@pytest.mark.parametrize(("region", "is_known"), [("UA", False), ("AT", True), ("rack 7", True)])
def test_a_country_in_no_known_region_is_logged_at_the_start(
    region: str, is_known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    World.over(leases="", placement=(memory("kyiv", region=region),)).close()
    assert (f"region = {region!r} is in none of the regions" in caplog.text) != is_known
