"""Restrictions over HTTP: said, seen, refused."""

import re

import pytest

from tests.server.placement.asking import acquired, memory, restriction, until
from tests.server.world import Client, World, b64, written


@pytest.fixture
def admin(world: World) -> Client:
    return world.client()


def test_a_restriction_is_set_seen_and_deleted(admin: Client) -> None:
    path = restriction("a")
    made = admin.put(path, json={"regions_allowed": ["europe"], "providers_denied": ["gcp"]})
    assert (made.status_code, made.json()) == (200, {"status": 200, "title": "Ok"})
    seen = admin.get(restriction("a", "LOCKS")).json()
    assert seen == {
        "api": "Locks",
        "directory": written("a"),
        "details": {
            "regions_allowed": ["XE"],
            "regions_denied": [],
            "providers_allowed": [],
            "providers_denied": ["GCP"],
        },
        "state": "Enforced",
        "placement": "home",
    }
    assert admin.delete(path).status_code == 200
    assert [admin.get(path).status_code, admin.delete(path).status_code] == [404, 404]
    media = {"Accept": "application/json", "Content-Type": "application/json"}
    sdk = {"User-Agent": "python-requests/2.28.1", **media}  # Seaplane's takes this for success
    answer = admin.put(path, json={"providers_denied": ["digitalocean"]}, headers=sdk)
    assert (answer.status_code, answer.json()) == (200, "Ok")
    assert admin.delete(path, headers=sdk).json() == "Ok"


def test_impossible_restrictions_are_refused(admin: Client) -> None:
    for rule, status, reason in (
        ({"regions_allowed": ["XE"], "regions_denied": ["eu"]}, 400, "XE: both allowed and denied"),
        ({"regions_allowed": ["atlantis"]}, 400, "unknown region 'atlantis'"),
        ({"providers_denied": ["AWS", "gcp"]}, 409, "AWS is denied, by the restriction on"),
        ({"regions": []}, 400, "unknown field"),
        ({"regions_allowed": "XE"}, 400, "Expected `array`"),
    ):
        answer = admin.put(restriction("b"), json=rule)
        assert (answer.status_code, reason in answer.text) == (status, True), answer.text
    answer = admin.put(restriction("b", "config"), json={})
    assert (answer.status_code, "only Locks can be" in answer.text) == (400, True)
    for method, route in (("GET", "locks"), ("PUT", "move"), ("PUT", "restrict/locks")):
        path = f"/v1/{route}/{b64('gdpr/')}/"  # as if it were another directory
        answer = admin.request(method, path, json={"to": "home"})
        assert answer.status_code == 400
        assert f"without the slash at its end: {b64('gdpr')}/" in answer.json()["detail"]


def test_a_directory_within_is_bound_by_those_around_it(admin: Client) -> None:
    assert admin.put(restriction("c"), json={"regions_allowed": ["XE"]}).status_code == 200
    refused = admin.put(restriction("c/d"), json={"regions_allowed": ["XN"]})
    assert refused.status_code == 409
    assert "home (AWS, DE)" in refused.json()["detail"]
    assert admin.put(restriction("c/d"), json={"providers_allowed": ["AWS"]}).status_code == 200
    around = admin.put(restriction("c"), json={"regions_allowed": ["XN"]})
    assert "c/d/" in around.json()["detail"]


def test_lists_come_in_pages_and_show_ones_own(world: World, admin: Client) -> None:
    for number in range(102):
        assert admin.put(restriction(f"list/{number:03}"), json={}).status_code == 200
    found: list[str] = []
    query: dict[str, str] = {}
    while True:
        page = admin.get("/v1/restrict/", params=query).json()
        found += [each["directory"] for each in page["restrictions"]]
        if page["next_key"] is None:
            break
        query |= {"from": f"base64:{page['next_key']}", "from_api": page["next_api"]}
    assert len(set(found)) == len(found) == 102
    reader = world.client("read", prefixes=[b"list/007/"])
    (only,) = reader.get("/v1/restrict/locks/").json()["restrictions"]
    assert only["directory"] == written("list/007")
    assert reader.get(restriction("list/008")).status_code == 404
    assert reader.put(restriction("list/007"), json={}).status_code == 403
    assert admin.get("/v1/restrict", params={"from": "base64:YQ"}).status_code == 400


def test_a_restriction_counts_for_more_than_a_move(admin: Client) -> None:
    where, path = f"/v1/move/{b64('f')}/", restriction("f")
    held = acquired(admin, "f/x")
    assert admin.put(where, json={"to": "home"}).status_code == 200
    rule = {"regions_allowed": ["XN"]}
    assert admin.put(path, json={**rule, "deadline": None}).status_code == 200
    seen = admin.get(where).json()
    assert (seen["to"], seen["phase"]) == ("away", "pending"), "until nobody holds"
    assert admin.put(path, json=rule).status_code == 200
    until(lambda: bool(admin.get(where).json()["phase"] == "draining"))
    assert admin.get(path).json()["state"] == "Pending"
    admin.release("f/x", held)
    until(lambda: bool(admin.get(path).json()["state"] == "Enforced"))
    assert admin.get(path).json()["placement"] == "away"
    assert admin.get(where).json()["to"] == "", "whoever waits for it waits no longer"
    assert admin.put(where, json={"to": "home"}).status_code == 409
    nowhere = admin.put(where, json={"to": "moon"})
    assert (nowhere.status_code, "placements: home, away" in nowhere.text) == (400, True)
    names = [each["name"] for each in admin.get("/v1/placements").json()["placements"]]
    assert names == ["home", "away"]


def test_a_country_in_no_known_region_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    places = (memory("kyiv", region="UA"), memory("b", region="AT"), memory("c", region="rack 7"))
    World.over(leases="", placement=places, records=f"{places[0].url}r").close()
    logged = re.findall(r"region = (\S+) is in none of the regions", caplog.text)
    assert logged == ["'UA'"]
