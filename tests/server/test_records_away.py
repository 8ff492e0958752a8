"""A server that cannot read its records: its locks go on, and a revoked key stops within a minute."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from dibs.errors import BackendUnavailable
from dibs.server.auth import key_cache
from dibs.server.auth.api_key import write_key
from dibs.server.placement.rules import PlacementSettings
from tests.server.inside import keys_of, records_of, runtime_of, stores_of
from tests.server.placement.asking import acquired, lock, until
from tests.server.world import World


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    """Two servers of one service."""
    monkeypatch.setattr(key_cache, "REFRESH", 0.05)
    monkeypatch.setattr(key_cache, "ASKED_AFTER", 0.2)
    monkeypatch.setattr(key_cache, "MAX_AGE", 2.0)
    urls: dict[str, Any] = {"leases": f"memory://{uuid4()}", "records": f"memory://{uuid4()}"}
    found = [World.over(**urls), World.over(**urls)]
    yield found
    for each in found:
        each.close()


async def away(*_: object) -> Any:
    raise BackendUnavailable("it is away")


async def hang(*_: object) -> Any:
    await asyncio.Event().wait()


def cut_off(world: World, monkeypatch: pytest.MonkeyPatch, how: Any = away) -> None:
    for name in ("revision", "all", "get", "put", "append"):
        monkeypatch.setattr(records_of(world), name, how)


@pytest.mark.parametrize("how", [away, hang])
def test_a_revoked_key_stops_also_where_the_records_cant_be_read(
    how: Any, worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = worlds
    principal, key = here.do(
        lambda: keys_of(here).create("a", {"acquire", "read"}, [])  # type: ignore[arg-type]
    )
    other = here.client("acquire")
    client = there.client(key=key)
    bystander = there.client(key=other.headers["Authorization"].removeprefix("Bearer "))
    held = acquired(client, "x")
    acquired(bystander, "z")
    with client.stream("GET", "/v1/stream") as stream:
        cut_off(there, monkeypatch, how)
        here.do(lambda: keys_of(here).revoke(principal.key_id))
        query = {"id": held["id"], "ttl": 60}
        until(lambda: client.patch(lock("x"), params=query).status_code == 401)
        assert "key ended" in stream.read().decode()
    acquired(bystander, "y")


def test_a_revocation_that_was_written_by_hand_is_passed_on_by_any_server(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = worlds
    principal, key = here.do(
        lambda: keys_of(here).create("a", {"acquire"}, [])  # type: ignore[arg-type]
    )
    client = there.client(key=key)
    acquired(client, "x")
    cut_off(there, monkeypatch)
    keys: Any = keys_of(here)

    async def by_hand() -> None:
        known = await keys._recorded(principal.key_id)
        record = write_key(replace(known, revoked=keys.now()))
        await keys._records.put("key", known.id, record, known.version)

    here.do(by_hand)
    until(lambda: client.post(lock("y")).status_code == 401)


def test_a_sign_is_left_when_the_store_is_back_though_the_records_are_away(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = worlds
    _revoke_while_away(here, there, list(stores_of(here)), monkeypatch)


@pytest.mark.parametrize("which", [0, 1])
def test_a_store_that_is_away_keeps_no_sign_from_another(
    which: int, worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: dict[str, Any] = {
        "leases": "",
        "records": f"memory://{uuid4()}",
        "placement": [PlacementSettings(name=name, url=f"memory://{uuid4()}") for name in "ab"],
    }
    here, there = World.over(**urls), World.over(**urls)
    worlds += here, there  # to be closed
    for name in ("call", "call_all"):
        monkeypatch.setattr(list(stores_of(here))[which], name, away)
    _revoke_while_away(here, there, [], monkeypatch)


def _revoke_while_away(
    here: World, there: World, stores: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Revoke two keys while those stores are away; the records are away from then on."""
    keys = [
        here.do(lambda: keys_of(here).create("a", {"read"}, []))  # type: ignore[arg-type]
        for _ in range(2)
    ]
    clients = [there.client(key=key) for _, key in keys]
    assert [client.get("/v1/limits").status_code for client in clients] == [200, 200]
    cut_off(there, monkeypatch)
    with monkeypatch.context() as now:
        for store in stores:
            now.setattr(store, "call", away)
        for principal, _ in keys:
            here.do(partial(keys_of(here).revoke, principal.key_id))
        cut_off(here, monkeypatch)
    until(lambda: all(client.get("/v1/limits").status_code == 401 for client in clients))


@pytest.mark.once
@pytest.mark.parametrize("how", [away, hang])
def test_locks_and_readiness_do_not_wait_for_the_records(
    how: Any, worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = worlds
    client, reader = here.client(), here.client("read")
    held = acquired(client, "x")
    cut_off(here, monkeypatch, how)
    now = runtime_of(here).now
    end = now() + 2 * key_cache.MAX_AGE
    while now() < end:
        assert client.patch(lock("x"), params={"id": held["id"], "ttl": 60}).status_code == 200
        assert client.get("/readyz").status_code == 200
        assert reader.post(lock("y")).status_code == 403


@pytest.mark.once
def test_without_word_from_records_and_store_nobody_is_let_in(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = worlds
    client = here.client()
    acquired(client, "x")
    cut_off(here, monkeypatch)
    for store in stores_of(here):
        monkeypatch.setattr(store, "call_all", away)
    until(lambda: client.get("/v1/limits").status_code == 503)
    assert client.get("/readyz").status_code == 503
