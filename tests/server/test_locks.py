"""`/v1/locks`, `/v1/scan`, `/v1/queues`: the shapes that clients know."""

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import httpx2
import pytest

from dibs.core.names import KINDS, fingerprint
from dibs.model import Acquire, Command
from dibs.runtime.port import TimedReply
from dibs.stores.http.names import decoded, encoded
from tests.server.world import ID, LONG, Client, World, b64, key, lock, problem, shared, written
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once

type Pool = ThreadPoolExecutor

WAYS: dict[str, dict[str, Any]] = {
    "lock": {},
    "semaphore": {"capacity": 2},
    "rwlock": {"mode": "read"},
    "tasklock": {"kind": "tasklock"},
    "leader": {"kind": "leader"},
}
"""How each kind is acquired."""
assert tuple(WAYS) == KINDS
TICK = 0.002
"""Seconds by which times in milliseconds, and clocks that are set meanwhile, can differ."""


world = shared(in_file=True)


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"tests/{request.node.name}"


@pytest.mark.parametrize("kind", WAYS)
def test_acquire_renew_show_release(world: World, name: str, kind: str) -> None:
    client = world.client("acquire")
    answer = client.acquire(name, **WAYS[kind])
    held, location = answer.json(), answer.headers["location"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{22,64}", held["id"])
    assert (held["kind"], held["ttl"], held["sequencer"] > 0) == (kind, 30, True)
    assert 30 - LONG / 2 < held["remaining"] <= 30
    assert location == f"{lock(name)}?kind={kind}"
    own = f"{location}&id={held['id']}"
    renewed = client.patch(f"{own}&ttl=60").json()
    assert (renewed["title"], renewed["remaining"]) == ("Ok", pytest.approx(60, abs=5))
    shown = client.get(location).json()
    assert (shown["kind"], shown["sequencer"]) == (kind, held["sequencer"])
    assert client.delete(own).json() == {"status": 200, "title": "Ok"}
    assert client.get(location).status_code == 404
    assert problem(client.patch(f"{own}&ttl=60")) == problem(client.delete(own)) == (410, "lost")
    assert client.acquired(name, **WAYS[kind])["sequencer"] > held["sequencer"]


@pytest.mark.parametrize("where", ["query", "header", "body"])
def test_an_own_lease_id_makes_retries_safe(client: Client, name: str, where: str) -> None:
    """It may stand in a header or the body, so that no log of queries has it."""
    given: dict[str, Any] = {
        "header": {"headers": {"Dibs-Lease-Id": ID}},
        "body": {"json": {"id": ID}},
    }

    def ask(method: str, **params: Any) -> httpx2.Response:
        own = {"id": ID} if where == "query" else {}
        return client.request(method, lock(name), params=params | own, **given.get(where, {}))

    first, again = ask("POST").json(), ask("POST", wait=1).json()
    assert (first["id"], first["sequencer"]) == (ID, again["sequencer"])
    assert ask("PATCH", ttl=60).json()["remaining"] > 30
    for method in ("POST", "PATCH", "DELETE") if where != "query" else ():
        assert problem(ask(method, id=ID)) == (400, "malformed"), "it is given twice"
    assert ask("DELETE").status_code == 200
    assert client.get(lock(name)).status_code == 404


def test_an_answer_that_comes_late_promises_no_more_than_there_is(
    world: World, client: Client, name: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What remains is counted from the request, and a lease that is over is not shown as held."""
    store, lateness = world.store, 0.3
    call = store.call

    async def slowly(command: Command, wait: float | None = None) -> TimedReply:
        answer = await call(command, wait)
        await asyncio.sleep(lateness)
        return answer

    monkeypatch.setattr(store, "call", slowly)
    held = client.acquired(name, ttl=9)
    renewed = client.patch(lock(name), params={"id": held["id"], "ttl": 20}).json()
    for told, ttl in ((held, 9), (renewed, 20)):
        assert told["remaining"] <= ttl - lateness
        ends = datetime.fromisoformat(told["expires_at"]).timestamp()
        assert ends <= time.time() + ttl - lateness + TICK
    again = client.acquired(f"{name}/again", ttl=1)
    lateness = 1.1
    query = {"id": again["id"], "ttl": 1}
    renewal = pool.submit(client.patch, lock(f"{name}/again"), params=query)
    ways: list[dict[str, Any]] = [{}, {"id": "o" * 22}, {"wait": 5}, {"wait": 5, "id": "w" * 22}]
    for each in [pool.submit(client.acquire, f"{name}/{way}", ttl=1, **way) for way in ways]:
        assert problem(each.result(LONG)) == (503, "unavailable")
        assert "the same id, if you brought one" in each.result().json()["detail"]
    assert renewal.result(LONG).status_code in (503, 410)  # 410: it was over before


def test_a_refusal_names_the_holder(world: World, client: Client, name: str) -> None:
    held = client.acquired(name, note="nightly")
    answer = client.acquire(name)
    assert problem(answer) == (409, "held")
    assert answer.headers["content-type"] == "application/problem+json"
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert "is held by web-3 (nightly)" in answer.json()["detail"]
    (holder,) = answer.json()["holders"]
    assert (holder["owner"], holder["note"]) == ("web-3", "nightly")
    assert "state" not in holder, "it is only sent if it is not `held`"
    assert held["id"] not in answer.text
    outsider = world.client("acquire", prefixes=[b"mine/"]).acquire(name)
    assert "scope acquire for the directory tests/" in outsider.json()["detail"]


def test_one_lock_and_lists_in_known_shapes(world: World, client: Client, name: str) -> None:
    held = client.acquired(f"{name}/a", note="why")
    answer = client.get(lock(f"{name}/a"))
    got = answer.json()
    assert got["name"] == written(f"{name}/a")
    assert got["id"] == fingerprint(held["id"])
    assert got["info"] == {"ttl": 30, "client-id": "web-3", "ip": "127.0.0.1"}
    assert got["holders"][0]["note"] == "why"
    page = world.client("read").get(f"{lock(name)}/").json()
    assert [(each["name"], each["id"]) for each in page["locks"]] == [(got["name"], got["id"])]
    assert page["next"] is None
    client.release(f"{name}/a", held)
    wrong = client.put(lock(name))
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "DELETE, GET, HEAD, PATCH, POST")
    assert client.head("/v1/locks").status_code == 200


def listed(
    client: Client, folder: str | None, start: bytes | None = None, **params: Any
) -> list[tuple[str, bytes]]:
    """Kinds and names on all pages."""
    found: list[tuple[str, bytes]] = []
    path = "/v1/locks" if folder is None else f"{lock(folder)}/"
    if start is not None:
        params["from"] = b64(start)
    while True:
        page = client.get(path, params=params).json()
        assert len(page["locks"]) <= params["limit"]
        found += [(each["kind"], decoded(each["name"])) for each in page["locks"]]
        if page["next"] is None:
            return found
        params["from"] = f"base64:{page['next']}"


def test_pages(world: World, client: Client) -> None:
    names = sorted(f"pages/{i:02}".encode() for i in range(7))
    for each in (*names, b"pages", b"pagesize"):
        client.acquired(each)
    locks = [("lock", each) for each in names]
    assert listed(client, "pages", limit=3) == locks
    assert listed(client, "pages", names[2], limit=3) == locks[2:], "`from` is included"
    assert listed(client, "pages", b"pages/025", limit=3) == locks[3:]
    assert {*locks, ("lock", b"pagesize")} <= set(listed(client, None, limit=5))
    own = world.client("read", prefixes=[b"pages/", b"tests/none/"])
    assert listed(own, None, limit=2) == locks
    assert listed(own, "elsewhere", limit=2) == []
    client.acquired("pages/00", capacity=2)
    every = listed(client, "pages", kind="all", limit=1)
    assert sorted(every) == sorted([*locks, ("semaphore", b"pages/00")])


def test_a_waiter_is_granted_or_leaves_the_line(client: Client, name: str, pool: Pool) -> None:
    held = client.acquired(name)
    waits = pool.submit(client.acquired, name, wait=20)
    wait_until(lambda: client.waiting(name), "somebody in line")
    client.release(name, held)
    assert waits.result(LONG)["remaining"] > 25, "it is confirmed for all of its ttl"
    answer = client.acquire(name, wait=0.2)
    assert (answer.status_code, answer.json()["position"]) == (409, 0)
    assert client.waiting(name) == 0


def test_a_forced_release(world: World, name: str) -> None:
    force, holder = world.client("force"), world.client("acquire")
    held = holder.acquired(name)
    query: dict[str, Any] = {"force": True, "reason": "null"}  # a text may say so
    assert force.delete(lock(name), params={"force": True}).status_code == 400
    soft = force.delete(lock(name), params=query).json()
    assert (soft["count"], soft["ends_in"]) == (1, pytest.approx(30, abs=5))
    assert "cannot renew" in soft["warning"]
    lost = holder.patch(lock(name), params={"id": held["id"], "ttl": 30})
    assert (lost.status_code, lost.json()["detail"]) == (410, "the lease was revoked: null")
    assert holder.acquire(name).status_code == 409, "until its ttl is over"
    hard = force.delete(lock(name), params=query | {"reason": "now", "now": True}).json()
    assert "fencing tokens" in hard["warning"]
    assert holder.acquired(name)["sequencer"] > held["sequencer"]


WRONG = [
    *(("POST", f"ttl={ttl}", "`ttl` must be") for ttl in ("30s", "0", "86401", "nan", "inf")),
    ("POST", "ttl=30&ttl=31", "'ttl' is given more than once"),
    ("POST", "tll=3", "unknown parameter `tll`; allowed parameters: ttl, client-id, id"),
    *(("POST", f"kind={kind}", "") for kind in ("semaphore", "rwlock")),
    *(("POST", f"id={each}", "`id` must be 22 to 64") for each in ("short", f"{'x' * 22}%0A")),
    ("POST", "capacity=1000001", "1000000 at most"),
    *(("POST", query, "") for query in ("mode=read&capacity=3", "units=2", "units=3&capacity=2")),
    ("POST", "note=%00", "`note` must be a text of 1024 letters at most"),
    *(("POST", f"{each}={'%F0%9F%94%92' * 1024}", "") for each in ("note", "client-id")),
    ("POST", "note=%ff", "cannot parse the query"),
    ("DELETE", f"id={ID}&lease=x", ""),
    *((method, "", "give the lease") for method in ("PATCH", "DELETE")),
]
"""Besides what breaks the schema, which `test_openapi` tries."""


def test_a_parameter_that_is_wrong(client: Client) -> None:
    for method, query, told in WRONG:
        answer = client.request(method, f"{lock('refused')}?{query}")
        assert problem(answer) == (400, "malformed"), query
        assert told in answer.json()["detail"]
        assert "regex" not in answer.text


def test_another_body_than_a_lease_id_is_refused(client: Client, name: str) -> None:
    """Else `-d '{"ttl": 5}'` would mean a ttl of 30 seconds."""
    wrong = (b'{"ttl": 5}', b"[]", b'{"id": 7}', b'{"id": ""}', b"id=x", b'{"id": "x", "ttl": 3}')
    for method in ("POST", "PATCH", "DELETE"):
        for body in (*wrong, iter([wrong[0]])):
            answer = client.request(method, lock(name), content=body)
            assert problem(answer) == (400, "malformed"), body
        large = client.request(method, lock(name), json={"id": "x" * 1024})
        assert problem(large) == (413, "body-too-large")
    in_get = client.request("GET", lock(name), content=wrong[0])
    assert (in_get.status_code, "query" in in_get.json()["detail"]) == (400, True)
    assert client.get(lock(name)).status_code == 404, "nothing was acquired"
    assert client.post(lock(name), content=iter([b""])).status_code == 200, "that is no body"


def test_each_name_has_one_spelling(world: World, client: Client) -> None:
    missing = ("locks/base64%3AZm9v", "locks/base64:Zm9v//", "/locks", "locks/../locks/base64:Zm9v")
    malformed = (
        *("locks/base64:Zm9v%2F", "locks/base64:Zm9v/%0A", "locks%0a", "locks%2Fbase64:Zm9v"),
        *("locks/base64:Zm9v==", "locks/base64:Zm9", "locks/base64:Zm+/", "locks/base64:"),
        *("locks/plain", "locks/base64:%FF%FE", "locks/base64:" + "A" * 700),
        *("locks?limit=1001", "locks?limit=null", "locks?from=base64:?", "audit?before=null"),
    )
    for status, paths in ((404, missing), (400, malformed)):
        for path in paths:
            url = httpx2.URL(world.url).copy_with(raw_path=f"/v1/{path}".encode())
            assert client.get(url).status_code == status, path


def test_the_old_python_sdk_is_answered_as_it_expects(client: Client, name: str) -> None:
    kinds = dict.fromkeys(("Accept", "Content-Type"), "application/json")
    sdk = kinds | {"User-Agent": "python-requests/2.28.1"}
    own = {"id": client.acquired(name)["id"]}
    assert client.patch(lock(name), params=own | {"ttl": "9"}, headers=sdk).json() == "OK"
    assert client.delete(lock(name), params=own, headers=sdk).json() == "OK"


def test_the_old_rust_sdk_is_refused_before_it_is_granted(world: World, name: str) -> None:
    """It reads tokens as 32-bit integers, and sends exactly these headers."""
    client = world.client("acquire")
    del client.headers["User-Agent"]
    sdk = {"Accept": "*/*", "Content-Type": "application/json"}
    refused = client.post(lock(name), params={"ttl": "15", "client-id": "x"}, headers=sdk)
    assert problem(refused) == (400, "malformed")
    assert "nothing was acquired" in refused.json()["detail"]
    assert client.get(lock(name)).status_code == 404
    assert client.post(lock(name), params={"id": ID}, headers=sdk).status_code == 200


def test_tokens(client: Client) -> None:
    text = client.post("/v1/token")
    assert text.headers["content-type"].startswith("text/plain")
    shape = client.post("/identity/token", headers={"Accept": "application/json"}).json()
    assert set(shape) == {"token", "tenant", "subdomain"}
    for token in (text.text, shape["token"]):
        bearer = {"Authorization": f"Bearer {token}"}
        assert client.get("/v1/locks", headers=bearer).status_code == 200
        again = client.post("/v1/token", headers=bearer)
        assert again.status_code == 403, "else a stolen token would live as long as its key"


def test_the_longest_line_comes_first(world: World, client: Client) -> None:
    for name, owners in (("a", "ab"), ("b", "abcd"), ("c", "a")):
        k = key(f"lines/{name}")
        client.apply(*(Acquire(k, f"{each:_<22}", each, 60.0, queue=True) for each in owners))
    asked = {"names": encoded(b"lines/")}
    found = client.get("/v1/queues", params=asked).json()
    lines = [(each["key"], each["waiting"]) for each in found["items"]]
    assert lines == [(encoded(b"lock:lines/b"), 3), (encoded(b"lock:lines/a"), 1)]
    assert (found["count"], found["complete"]) == (2, True)
    assert found["items"][0]["waiters"][0]["owner"] == "b"
    one = client.get("/v1/queues", params=asked | {"limit": "1"}).json()
    assert (len(one["items"]), one["count"]) == (1, 2)
    hidden = world.client("read", prefixes=[b"public/"]).get("/v1/queues").json()
    assert hidden == {"items": [], "count": 0, "complete": True}
