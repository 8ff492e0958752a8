"""What one key can have the service remember: tombstones and lines of the audit."""

from base64 import urlsafe_b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from dibs.model import Command, Release
from dibs.server import audit, quotas
from dibs.server.auth import keys
from dibs.server.limits import Limits
from dibs.server.placement import restrictions
from tests.server.inside import audit_of, store_of
from tests.server.world import World, b64


@pytest.fixture
def world() -> Iterator[World]:
    found = World.over(limits=Limits(tombstones_per_key=3))
    yield found
    found.close()


def key_of(name: str) -> str:
    return urlsafe_b64encode(f"lock:{name}".encode()).rstrip(b"=").decode()


def batch(client: httpx2.Client, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    answer = client.post("/v1/batch", json={"commands": commands})
    assert answer.status_code == 200, answer.text
    replies: list[dict[str, Any]] = answer.json()["replies"]
    return replies


def tombstones_of(world: World, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The tombstones that releases ask the store for from now on."""
    store = store_of(world)
    call, call_all, found = store.call, store.call_all, list[float]()

    async def seen(command: Command, *rest: Any) -> Any:
        if type(command) is Release:
            found.append(command.tombstone)
        return await call(command, *rest)

    async def all_seen(commands: list[Command], *rest: Any) -> Any:
        found.extend(each.tombstone for each in commands if type(each) is Release)
        return await call_all(commands, *rest)

    monkeypatch.setattr(store, "call", seen)
    monkeypatch.setattr(store, "call_all", all_seen)
    return found


def test_tombstones_of_a_key_are_few_and_short(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tombstones_of(world, monkeypatch)
    client = world.client("acquire")
    release = {"op": "release", "key": key_of("x"), "tombstone": 80_000}
    batch(client, *({**release, "id": "same"} for _ in range(5)))
    assert found == [quotas.MAX_TOMBSTONE] * 5, "one id of one name is one tombstone"
    found.clear()
    batch(client, *({**release, "id": f"id-{each}"} for each in range(3)))
    assert found == [quotas.MAX_TOMBSTONE, quotas.MAX_TOMBSTONE, 0.0]
    found.clear()
    batch(client, {**release, "id": "same", "key": key_of("y")})
    client.delete(f"/v1/locks/{b64('z')}", params={"id": "made-up"})
    assert found == [0.0, 0.0]
    found.clear()
    batch(world.client("acquire"), {**release, "id": "same"})
    assert found == [quotas.MAX_TOMBSTONE], "another key has its own"


def test_a_page_of_leases_with_many_slots_is_bounded(world: World) -> None:
    client = world.client()
    wish = {"op": "acquire", "owner": "me", "ttl": 60.0, "units": 1024, "capacity": 1024}
    keys = [urlsafe_b64encode(b"semaphore:%05d" % n).decode() for n in range(300)]
    batch(client, *({**wish, "key": each.rstrip("="), "id": each} for each in keys))
    assert len(client.get("/v1/scan", params={"limit": 1000}).content) < 1_200_000


FORCE: dict[str, Any] = {"force": True, "reason": "a test", "now": True}


def test_to_force_what_nobody_holds_writes_nothing(world: World) -> None:
    admin = world.client()
    before = admin.get("/v1/audit").json()
    assert admin.delete(f"/v1/locks/{b64('x')}", params=FORCE).status_code == 404
    revoke = {"op": "revoke", "key": key_of("x"), "lease": None, "reason": "a test", "now": True}
    (none,) = batch(admin, revoke)
    assert (none["is"], none["count"]) == ("revoked", 0)
    assert admin.get("/v1/audit").json() == before
    take = {"op": "acquire", "key": key_of("x"), "id": "a", "owner": "me", "ttl": 60}
    _, one = batch(admin, take, revoke)
    assert one["count"] == 1
    admin.post(f"/v1/locks/{b64('x')}")
    assert admin.delete(f"/v1/locks/{b64('x')}", params=FORCE).json()["count"] == 1
    lines = admin.get("/v1/audit").json()["entries"]
    assert [each["what"] for each in lines[:2]] == ["force release"] * 2


def test_a_key_forces_only_so_often(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_of(world), "_forced", audit._Rate(1, 10))
    admin = world.client()
    for name in "xy":
        admin.post(f"/v1/locks/{b64(name)}")
    assert admin.delete(f"/v1/locks/{b64('x')}", params=FORCE).status_code == 200
    assert admin.delete(f"/v1/locks/{b64('y')}", params=FORCE).status_code == 429
    revoke = {"op": "revoke", "key": key_of("y"), "lease": None, "reason": "a test", "now": True}
    assert batch(admin, revoke)[0]["is"] == "failed"
    assert admin.get(f"/v1/locks/{b64('y')}").status_code == 200


def test_an_administrator_of_a_directory_has_only_so_many_keys_and_restrictions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "KEYS_EACH", 3)
    monkeypatch.setattr(restrictions, "RULES_EACH", 2)
    theirs, admin = world.client("admin", prefixes=[b"shop/"]), world.client()

    def made(client: httpx2.Client, prefix: str) -> int:
        new = {"name": "a", "scopes": ["read"], "prefixes": [prefix]}
        answer = client.post("/v1/keys", json=new)
        if answer.status_code == 201:
            client.delete(f"/v1/keys/{answer.json()['id']}")
        return answer.status_code

    new = {"name": "a", "scopes": ["admin"], "prefixes": ["shop/"]}
    assert theirs.post("/v1/keys", json=new).status_code == 403, "it would have a count of its own"
    assert [made(theirs, "shop/") for _ in range(3)] == [201, 201, 429]
    assert [made(admin, "shop/") for _ in range(2)] == [201, 201]

    def restricted(client: httpx2.Client, directory: str) -> int:
        return client.put(f"/v1/restrict/locks/{b64(directory)}/", json={}).status_code

    assert restricted(admin, "elsewhere") == 200
    assert [restricted(theirs, f"shop/{each}") for each in "abca"] == [200, 200, 429, 200]
    assert restricted(admin, "shop/c") == 200
    before = admin.get("/v1/audit").json()
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: restricted(theirs, "shop/a"), range(8)))
    assert told == [200] * 8
    assert admin.get("/v1/audit").json() == before, "nothing has changed"
