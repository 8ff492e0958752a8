"""A server that cannot read its records: its locks go on, and a revoked key stops within a minute."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from dibs.server.auth import key_cache
from dibs.server.auth.api_key import write_key
from dibs.server.placement.rules import PlacementSettings
from tests.server.world import Client, Patch, World, away, lock
from tests.servers.waiting import wait_until


@pytest.fixture
def worlds(monkeypatch: Patch) -> Iterator[list[World]]:
    monkeypatch.setattr(key_cache, "REFRESH", 0.05)
    monkeypatch.setattr(key_cache, "ASKED_AFTER", 0.2)
    monkeypatch.setattr(key_cache, "MAX_AGE", 1.0)
    urls: dict[str, Any] = {"leases": f"memory://{uuid4()}", "records": f"memory://{uuid4()}"}
    with World.over(**urls) as here, World.over(**urls) as there:
        yield [here, there]


async def hang(*_: object) -> Any:
    await asyncio.Event().wait()


def is_refused(client: Client) -> bool:
    return client.get("/v1/limits").status_code == 401


@pytest.mark.parametrize("how", [away, hang])
def test_a_revoked_key_stops_where_the_records_cannot_be_read(
    how: Any, worlds: list[World], monkeypatch: Patch
) -> None:
    here, there = worlds
    key, other = here.key("acquire"), here.key("acquire")
    client, bystander = there.client(key=key), there.client(key=other)
    held = client.acquired("x")
    bystander.acquired("z")
    with client.stream("GET", "/v1/stream") as stream:
        there.cut_off(monkeypatch, how)
        here.revoke(key)
        query = {"id": held["id"], "ttl": 60}
        wait_until(lambda: client.patch(lock("x"), params=query).status_code == 401, "its end")
        assert "key ended" in stream.read().decode()
    bystander.acquired("y")


def test_revocations_are_passed_on(worlds: list[World], monkeypatch: Patch) -> None:
    here, there = worlds
    key = here.key("acquire")
    client = there.client(key=key)
    client.acquired("x")
    there.cut_off(monkeypatch)
    keys: Any = here.server.keys

    async def by_hand() -> None:
        known = await keys._recorded(key.split("_")[1])
        record = write_key(replace(known, revoked=keys.now()))
        await keys._records.put("key", known.id, record, known.version)

    here.do(by_hand)
    wait_until(lambda: client.post(lock("y")).status_code == 401, "it is revoked")


@pytest.mark.parametrize("which", [None, 0, 1], ids=["the only store", "the first", "the second"])
def test_a_revocation_while_stores_are_away(
    which: int | None, worlds: list[World], monkeypatch: Patch
) -> None:
    """It passes through the store when that is back, or through another; the records are away."""
    here, there = worlds
    with ExitStack() as stack:
        if which is not None:
            settings: dict[str, Any] = {
                "leases": "",
                "records": f"memory://{uuid4()}",
                "placement": [PlacementSettings(name=n, url=f"memory://{uuid4()}") for n in "ab"],
            }
            here, there = (stack.enter_context(World.over(**settings)) for _ in range(2))
            for name in ("call", "call_all"):
                monkeypatch.setattr(list(here.runtime.stores)[which], name, away)
        keys = [here.key("read") for _ in range(2)]
        clients = [there.client(key=key) for key in keys]
        assert [client.get("/v1/limits").status_code for client in clients] == [200, 200]
        there.cut_off(monkeypatch)
        with monkeypatch.context() as now:
            if which is None:
                now.setattr(here.store, "call", away)
            for key in keys:
                here.revoke(key)
            here.cut_off(monkeypatch)
        for client in clients:
            wait_until(partial(is_refused, client), "its end")


@pytest.mark.once
def test_what_needs_records_or_stores(worlds: list[World], monkeypatch: Patch) -> None:
    here, _ = worlds
    client, reader = here.client(), here.client("read")
    held = client.acquired("x")
    here.cut_off(monkeypatch)
    wait_until(lambda: here.server.keys.cache.stale_for > key_cache.MAX_AGE, "the records are away")
    assert client.patch(lock("x"), params={"id": held["id"], "ttl": 60}).status_code == 200
    assert client.get("/readyz").status_code == 200
    assert reader.post(lock("y")).status_code == 403
    for store in here.runtime.stores:
        monkeypatch.setattr(store, "call_all", away)
    wait_until(lambda: client.get("/v1/limits").status_code == 503, "no key is accepted")
    assert client.get("/readyz").status_code == 503
