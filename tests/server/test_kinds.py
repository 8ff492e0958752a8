"""The kind of a name: the answer to an acquire tells it, and later requests say it with `kind=`."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from dibs.core.names import KINDS
from tests.server.test_api_locks import acquire
from tests.server.world import World, b64

WAYS: dict[str, dict[str, Any]] = {
    "lock": {},
    "semaphore": {"capacity": 2},
    "rwlock": {"mode": "read"},
    "tasklock": {"kind": "tasklock"},
    "leader": {"kind": "leader"},
}
"""How each kind is acquired."""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World.over()
    yield world
    world.close()


@pytest.fixture
def client(world: World) -> httpx2.Client:
    return world.client("acquire", "force")


def test_every_kind_has_its_way() -> None:
    assert tuple(WAYS) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_location_of_a_lease_is_renewed_seen_and_released(
    client: httpx2.Client, kind: str
) -> None:
    acquired = acquire(client, f"life/{kind}", **WAYS[kind])
    held, location = acquired.json(), acquired.headers["location"]
    assert held["kind"] == kind
    assert location == f"/v1/locks/{b64(f'life/{kind}')}?kind={kind}"
    own = f"{location}&id={held['id']}"
    assert client.patch(f"{own}&ttl=60").json()["remaining"] == pytest.approx(60, abs=5)
    shown = client.get(location).json()
    assert (shown["kind"], shown["sequencer"]) == (kind, held["sequencer"])
    assert client.delete(own).json() == {"status": 200, "title": "Ok"}
    assert client.get(location).status_code == 404


def test_without_a_kind_it_is_a_lock_and_a_miss_names_the_parameter(client: httpx2.Client) -> None:
    held = acquire(client, "pool", capacity=2).json()
    path, own = f"/v1/locks/{b64('pool')}", {"id": held["id"]}
    forced: dict[str, str | bool] = {"force": True, "reason": "it hangs"}
    for answer, status in (
        (client.get(path), 404),
        (client.patch(path, params=own), 410),
        (client.delete(path, params=own), 410),
        (client.delete(path, params=forced), 404),
    ):
        assert answer.status_code == status
        assert "kind= (lock, semaphore," in answer.json()["detail"]
    assert client.delete(path, params=forced | {"kind": "semaphore"}).json()["count"] == 1


def test_an_etag_is_of_one_kind(client: httpx2.Client) -> None:
    path = f"/v1/locks/{b64('both')}"
    acquire(client, "both")
    acquire(client, "both", capacity=1)
    tag = {"If-None-Match": client.get(path).headers["etag"]}
    assert client.get(path, headers=tag).status_code == 304
    assert client.get(path, headers=tag, params={"kind": "semaphore"}).status_code == 200
