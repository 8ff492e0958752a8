"""Two servers of one service, over one store: it does not matter which of them one asks."""

import threading
from collections.abc import Iterator
from secrets import token_hex

import httpx2
import pytest

from dibs.core.names import fingerprint
from tests.server.test_api_locks import acquire, acquired
from tests.server.world import LONG, World, b64
from tests.servers.waiting import wait_until


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, World]]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('servers') / 'leases.db'}"
    else:
        url = request.getfixturevalue(f"{request.param}_url")
    secret = (token_hex(16),)
    first = World.over(store=url, records=url, secret=secret)
    second = World.over(store=url, records=url, secret=secret)
    yield first, second
    first.close()
    second.close()


@pytest.mark.once
def test_any_of_them_will_do(servers: tuple[World, World]) -> None:
    one, two = servers
    here, there = one.client(), two.client(key=one.admin_key)
    held = acquired(here, "shared/x", note="mine")
    shown = there.get(f"/v1/locks/{b64('shared/x')}").json()
    assert shown["id"] == fingerprint(held["id"])
    assert [lock["id"] for lock in there.get("/v1/locks").json()["locks"]] == [shown["id"]]
    path, query = f"/v1/locks/{b64('shared/x')}", {"id": held["id"]}
    assert there.patch(path, params=query | {"ttl": 60}).status_code == 200
    got: list[httpx2.Response] = []
    waiter = threading.Thread(target=lambda: got.append(acquire(there, "shared/x", wait=30)))
    waiter.start()
    wait_until(lambda: here.get(path).json()["waiting"], "somebody in line")
    assert here.delete(path, params=query).status_code == 200
    waiter.join(LONG)
    assert got[0].status_code == 200
    assert got[0].json()["sequencer"] > held["sequencer"]


@pytest.mark.once
def test_the_first_key_is_one(servers: tuple[World, World]) -> None:
    one, two = servers
    assert one.server.first_key
    assert two.server.first_key is None
    token = one.client().post("/v1/token").text
    answer = two.client(key=token).get("/v1/locks")
    assert answer.status_code == 200, "a token of the one is good at the other"
