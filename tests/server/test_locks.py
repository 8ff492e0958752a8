"""`/v1/locks`: the shapes that clients written for them know, and what there is besides."""

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import httpx2
import pytest

from dibs.core.names import KINDS, fingerprint
from dibs.model import Command
from dibs.runtime.port import TimedReply
from dibs.stores.http.names import decoded
from tests.server.inside import store_of
from tests.server.world import ID, LONG, World, acquire, acquired, b64, lock, problem, waiting
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once

WAYS: dict[str, dict[str, Any]] = {
    "lock": {},
    "semaphore": {"capacity": 2},
    "rwlock": {"mode": "read"},
    "tasklock": {"kind": "tasklock"},
    "leader": {"kind": "leader"},
}
"""How each kind is acquired."""
TICK = 0.002
"""Seconds by which times in milliseconds, and clocks that are set meanwhile, can differ."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World.over(tmp_path_factory.mktemp("api")) as world:
        yield world


@pytest.fixture
def client(world: World) -> httpx2.Client:
    return world.client()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"tests/{request.node.name}"


# -- a lease's life ---------------------------------------------------------------------------------


def test_every_kind_is_acquired_somehow() -> None:
    assert tuple(WAYS) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_acquire_renew_show_release(world: World, name: str, kind: str) -> None:
    client = world.client("acquire")
    answer = acquire(client, name, **WAYS[kind])
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
    assert acquired(client, name, **WAYS[kind])["sequencer"] > held["sequencer"]


def test_units_of_a_semaphore_and_modes_of_a_rwlock(client: httpx2.Client, name: str) -> None:
    held = [acquired(client, name, capacity=3, units=units) for units in (1, 2)]
    assert [each["slots"] for each in held] == [[0], [1, 2]]
    assert problem(acquire(client, name, capacity=3)) == (409, "held")
    shown = client.get(lock(name), params={"kind": "semaphore"}).json()
    assert (shown["capacity"], len(shown["holders"])) == (3, 2)
    readers = [acquired(client, name, mode="read") for _ in range(3)]
    assert acquire(client, name, mode="write").status_code == 409
    for reader in readers:
        client.delete(lock(name), params={"id": reader["id"], "kind": "rwlock"})
    assert acquired(client, name, mode="write")["units"] == 1
    assert acquire(client, name, mode="read").status_code == 409


def test_without_a_kind_it_is_a_lock_and_a_miss_names_the_parameter(
    client: httpx2.Client, name: str
) -> None:
    own = {"id": acquired(client, name, capacity=2)["id"]}
    forced: dict[str, str | bool] = {"force": True, "reason": "it hangs"}
    for answer, status in (
        (client.get(lock(name)), 404),
        (client.patch(lock(name), params=own), 410),
        (client.delete(lock(name), params=own), 410),
        (client.delete(lock(name), params=forced), 404),
    ):
        assert answer.status_code == status
        assert "kind= (lock, semaphore," in answer.json()["detail"]
    assert client.delete(lock(name), params=forced | {"kind": "semaphore"}).json()["count"] == 1


def test_a_lease_id_from_the_caller_makes_retries_safe(client: httpx2.Client, name: str) -> None:
    first, again = (acquired(client, name, id=ID) for _ in range(2))
    assert (first["id"], first["sequencer"]) == (ID, again["sequencer"])


@pytest.mark.parametrize("where", ["header", "body"])
def test_a_lease_id_may_stand_in_a_header_or_the_body(
    client: httpx2.Client, name: str, where: str
) -> None:
    """So that no log of queries has it."""
    own: dict[str, Any] = {"headers": {"Dibs-Lease-Id": ID}}
    if where == "body":
        own = {"json": {"id": ID}}

    def ask(method: str, **more: Any) -> httpx2.Response:
        return client.request(method, lock(name), **own | more)

    assert ask("POST").json()["id"] == ask("POST", params={"wait": 1}).json()["id"] == ID
    assert ask("PATCH", params={"ttl": 60}).json()["remaining"] > 30
    for method in ("POST", "PATCH", "DELETE"):
        assert problem(ask(method, params={"id": ID})) == (400, "malformed"), "it is given twice"
    assert ask("DELETE").status_code == 200
    assert client.get(lock(name)).status_code == 404


@pytest.fixture
def late(world: World, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How late answers of the store arrive, in seconds: the last one counts."""
    store = store_of(world)
    call, late = store.call, [0.0]

    async def slowly(command: Command, wait: float | None = None) -> TimedReply:
        answer = await call(command, wait)
        await asyncio.sleep(late[-1])
        return answer

    monkeypatch.setattr(store, "call", slowly)
    return late


def test_the_time_that_remains_is_counted_from_the_request(
    client: httpx2.Client, name: str, late: list[float]
) -> None:
    late.append(0.3)
    held = acquired(client, name, ttl=9)
    renewed = client.patch(lock(name), params={"id": held["id"], "ttl": 20}).json()
    for told, ttl in ((held, 9), (renewed, 20)):
        assert told["remaining"] <= ttl - 0.3
        ends = datetime.fromisoformat(told["expires_at"]).timestamp()
        assert ends <= time.time() + ttl - 0.3 + TICK


def test_a_lease_that_is_over_when_its_answer_comes_is_not_shown_as_held(
    client: httpx2.Client, name: str, late: list[float], pool: ThreadPoolExecutor
) -> None:
    again = acquired(client, name, ttl=1)
    late.append(1.1)
    renewal = pool.submit(client.patch, lock(name), params={"id": again["id"], "ttl": 1})
    queries: list[dict[str, Any]] = [{}, {"id": "o" * 22}, {"wait": 5}, {"wait": 5, "id": "w" * 22}]
    asked = [
        pool.submit(acquire, client, f"{name}/{number}", ttl=1, **query)
        for number, query in enumerate(queries)
    ]
    for each in asked:
        assert problem(each.result(LONG)) == (503, "unavailable")
        assert "the same id, if you brought one" in each.result().json()["detail"]
    assert renewal.result(LONG).status_code in (503, 410)  # 410: it was over before


# -- who holds it -----------------------------------------------------------------------------------


def test_a_refusal_names_the_holder(world: World, client: httpx2.Client, name: str) -> None:
    held = acquired(client, name, note="nightly")
    answer = acquire(client, name)
    assert problem(answer) == (409, "held")
    assert answer.headers["content-type"] == "application/problem+json"
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert "is held by web-3 (nightly)" in answer.json()["detail"]
    (holder,) = answer.json()["holders"]
    assert (holder["owner"], holder["note"]) == ("web-3", "nightly")
    assert held["id"] not in answer.text
    outsider = world.client("acquire", prefixes=[b"mine/"])
    theirs, nobodys = (outsider.get(lock(each)) for each in (name, "mine/nothing"))
    assert (theirs.status_code, theirs.content) == (404, nobodys.content)
    answer = acquire(outsider, name)
    assert "scope acquire for the directory tests/" in answer.json()["detail"]
    assert (answer.status_code, "web-3" in answer.text) == (403, False)


def test_one_lock_and_lists_in_the_known_shapes(
    world: World, client: httpx2.Client, name: str
) -> None:
    held = acquired(client, f"{name}/a", note="why")
    got = client.get(lock(f"{name}/a")).json()
    assert got["name"] == b64(f"{name}/a").removeprefix("base64:")
    assert got["id"] == fingerprint(held["id"])
    assert got["info"] == {"ttl": 30, "client-id": "web-3", "ip": "127.0.0.1"}
    assert got["holders"][0]["note"] == "why"
    page = world.client("read").get(f"{lock(name)}/").json()
    assert [(each["name"], each["id"]) for each in page["locks"]] == [(got["name"], got["id"])]
    assert page["next"] is None


def listed(
    client: httpx2.Client, folder: str | None, start: bytes | None = None, **params: Any
) -> list[tuple[str, bytes]]:
    """Kinds and names on all pages."""
    found: list[tuple[str, bytes]] = []
    if start is not None:
        params["from"] = b64(start)
    while True:
        path = "/v1/locks" if folder is None else f"{lock(folder)}/"
        page = client.get(path, params=params).json()
        assert len(page["locks"]) <= params["limit"]
        found += [(each["kind"], decoded(each["name"])) for each in page["locks"]]
        if page["next"] is None:
            return found
        params["from"] = f"base64:{page['next']}"


def test_pages(world: World, client: httpx2.Client) -> None:
    names = sorted(f"pages/{i:02}".encode() for i in range(7))
    for each in (*names, b"pages", b"pagesize"):
        acquired(client, each)
    locks = [("lock", each) for each in names]
    assert listed(client, "pages", limit=3) == locks
    assert listed(client, "pages", names[2], limit=3) == locks[2:], "`from` is included"
    assert listed(client, "pages", b"pages/025", limit=3) == locks[3:]
    assert {*locks, ("lock", b"pagesize")} <= set(listed(client, None, limit=5))
    own = world.client("read", prefixes=[b"pages/", b"tests/none/"])
    assert listed(own, None, limit=2) == locks
    assert listed(own, "elsewhere", limit=2) == []
    others: dict[str, dict[str, Any]] = {
        "semaphore": {"capacity": 2},
        "rwlock": {"mode": "read"},
        "leader": {},
    }
    for kind, query in others.items():
        acquired(client, "pages/00", **query | {"kind": kind})
    every = listed(client, "pages", kind="all", limit=1)
    assert sorted(every) == sorted([*locks, *((kind, b"pages/00") for kind in others)])


def test_an_etag_is_of_one_kind_and_changes_with_the_holder(
    client: httpx2.Client, name: str
) -> None:
    held = acquired(client, name)
    acquire(client, name, capacity=1)
    tag = client.get(lock(name)).headers["etag"]
    same = client.get(lock(name), headers={"If-None-Match": f'"x", {tag}'})
    assert (same.status_code, same.content) == (304, b"")
    headers, semaphore = {"If-None-Match": tag}, {"kind": "semaphore"}
    assert client.get(lock(name), headers=headers, params=semaphore).status_code == 200
    client.delete(lock(name), params={"id": held["id"]})
    acquired(client, name)
    assert client.get(lock(name), headers=headers).status_code == 200


# -- waiting ----------------------------------------------------------------------------------------


def test_waiting_in_line(client: httpx2.Client, name: str, pool: ThreadPoolExecutor) -> None:
    held = acquired(client, name)
    waits = pool.submit(acquired, client, name, wait=20)
    wait_until(lambda: waiting(client, name), "somebody in line")
    client.delete(lock(name), params={"id": held["id"]})
    granted = waits.result(LONG)
    assert granted["sequencer"] > held["sequencer"]
    assert granted["remaining"] > 25, "it is confirmed for all of its ttl"


def test_a_waiter_that_times_out_or_hangs_up_leaves_the_line(
    client: httpx2.Client, name: str
) -> None:
    acquired(client, name)
    answer = acquire(client, name, wait=0.2)
    assert (answer.status_code, answer.json()["position"]) == (409, 0)
    assert "is held by web-3" in answer.json()["detail"]
    assert waiting(client, name) == 0
    with pytest.raises(httpx2.ReadTimeout):
        client.post(lock(name), params={"wait": 50}, timeout=httpx2.Timeout(LONG, read=0.3))
    wait_until(lambda: not waiting(client, name), "nobody in line")


def test_the_wait_of_a_revoked_key_ends(
    world: World, client: httpx2.Client, name: str, pool: ThreadPoolExecutor
) -> None:
    acquired(client, name)
    key = world.key("acquire")
    theirs = world.client(key=key)
    waits = pool.submit(acquire, theirs, name, wait=50)
    wait_until(lambda: waiting(client, name), "somebody in line")
    world.revoke(key)
    answer = waits.result(LONG)
    assert (answer.status_code, "revoked or expired" in answer.text) == (401, True)
    assert theirs.get("/v1/locks").status_code == 401


# -- force ------------------------------------------------------------------------------------------


def test_a_forced_release(world: World, client: httpx2.Client, name: str) -> None:
    force, holder = world.client("force"), world.client("acquire")
    held = acquired(holder, name)
    query: dict[str, Any] = {"force": True, "reason": "null"}  # a text may say so
    assert holder.delete(lock(name), params=query).status_code == 403
    assert force.delete(lock(name), params={"id": held["id"]}).status_code == 403
    assert force.delete(lock(name), params={"force": True}).status_code == 400
    soft = force.delete(lock(name), params=query).json()
    assert (soft["count"], soft["ends_in"]) == (1, pytest.approx(30, abs=5))
    assert "cannot renew" in soft["warning"]
    lost = holder.patch(lock(name), params={"id": held["id"], "ttl": 30})
    assert (lost.status_code, lost.json()["detail"]) == (410, "the lease was revoked: null")
    assert acquire(holder, name).status_code == 409, "until its ttl is over"
    hard = force.delete(lock(name), params=query | {"reason": "now", "now": True}).json()
    assert "fencing tokens" in hard["warning"]
    assert acquired(holder, name)["sequencer"] > held["sequencer"]
    lines = client.get("/v1/audit").json()["entries"]
    forced = [each for each in lines if (each["what"], each["name"]) == ("force release", name)]
    assert [each["detail"]["reason"] for each in forced] == ["now", "null"]


def test_one_lease_of_several_is_ended_by_its_fingerprint(client: httpx2.Client, name: str) -> None:
    for owner in ("pool-a", "pool-b"):
        acquired(client, name, capacity=2, **{"client-id": owner})
    kind = {"kind": "semaphore"}
    held = client.get(lock(name), params=kind).json()["holders"]
    lease = next(each["lease"] for each in held if each["owner"] == "pool-b")
    asked = kind | {"force": True, "now": True, "reason": "a test", "lease": lease}
    assert client.delete(lock(name), params=asked).json()["count"] == 1
    held = client.get(lock(name), params=kind).json()["holders"]
    assert [each["owner"] for each in held] == ["pool-a"]


# -- how requests are written -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "query", "told"),
    [
        ("POST", "ttl=30s", "`ttl` must be a number of seconds, such as 30 or 2.5"),
        *(
            (method, f"ttl={ttl}&id={ID}", "`ttl` must be 1 to 86400 seconds")
            for method in ("POST", "PATCH")
            for ttl in ("0", "-1", "0.99", "86401", "1e12", "nan", "inf")
        ),
        ("POST", "ttl=30&ttl=31", "'ttl' is given more than once"),
        ("POST", "tll=3", "unknown parameter `tll`; allowed parameters: ttl, client-id, id"),
        ("POST", "wait=-1", "`wait` must be a number of seconds, 0 or more"),
        ("POST", "wait=61", "wait"),
        ("POST", "kind=foo", "`kind` must be one of leader, lock, rwlock, semaphore, tasklock"),
        ("POST", "kind=null", "kind"),
        ("POST", "kind=semaphore", ""),
        ("POST", "kind=rwlock", ""),
        ("POST", "mode=append", "`mode` must be one of read, write"),
        ("POST", "mode=%6eull", "mode"),
        ("POST", "mode=read&capacity=3", ""),
        ("POST", "id=short", "`id` must be 22 to 64 letters, digits, - and _, drawn at random"),
        ("POST", "id=with/slash-and-22-letters", ""),
        ("POST", f"id={'x' * 22}%0A", ""),
        ("POST", "capacity=1.5", "`capacity` must be a whole number, 1 at least, 1000000 at most"),
        ("POST", "capacity=0", ""),
        ("POST", f"capacity={1 << 31}", ""),
        ("POST", "units=null", ""),
        ("POST", "units=2", ""),
        ("POST", "units=3&capacity=2", ""),
        ("POST", f"priority={1 << 40}", "priority"),
        ("POST", "note=%00", "`note` must be a text of 1024 letters at most"),
        ("POST", "note=a%1F", ""),
        ("POST", f"note={'x' * 4097}", ""),
        ("POST", f"note={'%F0%9F%94%92' * 1024}", "bytes"),
        ("POST", f"client-id={'%F0%9F%94%92' * 256}", "bytes"),
        ("POST", "note=%ff", "cannot parse the query"),
        ("POST", "client-id=a%0A", ""),
        ("DELETE", "force=perhaps", "`force` must be true or false"),
        ("DELETE", f"id={ID}&lease=x", ""),
        ("PATCH", "", "give the lease"),
        ("DELETE", "", "give the lease"),
    ],
)
def test_a_parameter_that_is_wrong(
    client: httpx2.Client, method: str, query: str, told: str
) -> None:
    answer = client.request(method, f"{lock('refused')}?{query}")
    assert problem(answer) == (400, "malformed")
    assert told in answer.json()["detail"]
    assert "regex" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
def test_another_body_than_a_lease_id_is_refused(
    client: httpx2.Client, name: str, method: str
) -> None:
    """Else `-d '{"ttl": 5}'` would mean a ttl of 30 seconds."""
    bodies = (b'{"ttl": 5}', b"{}", b"[]", b'{"id": 7}', b'{"id": ""}', b"id=x", b"\xff")
    for body in (*bodies, b'{"id": "x", "ttl": 3}'):
        for content in (body, iter([body])):
            answer = client.request(method, lock(name), content=content)
            assert problem(answer) == (400, "malformed"), body
    large = client.request(method, lock(name), json={"id": "x" * 1024})
    assert problem(large) == (413, "body-too-large")
    in_get = client.request("GET", lock(name), content=bodies[0])
    assert (in_get.status_code, "query" in in_get.json()["detail"]) == (400, True)
    assert client.get(lock(name)).status_code == 404, "nothing was acquired"
    assert client.post(lock(name), content=iter([b""])).status_code == 200, "that is no body"


@pytest.mark.parametrize("raw", [b"\x00", b"\xff\xfe", b"a b", b"../..", b"/", b"a/", "é".encode()])
def test_names_of_any_bytes(client: httpx2.Client, raw: bytes) -> None:
    held = acquired(client, raw)
    assert client.get(lock(raw)).json()["id"] == fingerprint(held["id"])
    assert client.delete(lock(raw), params={"id": held["id"]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/locks/base64%3AZm9v", 404),
        ("/v1/locks/base64:Zm9v%2F", 400),
        ("/v1/locks/base64:Zm9v/%0A", 400),
        ("/v1/locks%0a", 400),
        ("/v1/locks%2Fbase64:Zm9v", 400),
        ("/v1/locks/base64:Zm9v==", 400),
        ("/v1/locks/base64:Zm9", 400),
        ("/v1/locks/base64:Zm+/", 400),
        ("/v1/locks/base64:", 400),
        ("/v1/locks/plain", 400),
        ("/v1/locks/base64:%FF%FE", 400),
        ("/v1/locks/base64:" + "A" * 700, 400),
        ("/v1/locks/base64:Zm9v//", 404),
        ("/v1//locks", 404),
        ("/v1/locks/../locks/base64:Zm9v", 404),
        ("/v2", 404),
        ("//", 404),
        ("/v1/locks?limit=1001", 400),
        ("/v1/locks?limit=null", 400),
        ("/v1/locks?from=base64:?", 400),
        ("/v1/audit?before=null", 400),
    ],
)
def test_each_name_has_one_spelling(
    world: World, client: httpx2.Client, path: str, status: int
) -> None:
    sent = httpx2.Request("GET", httpx2.URL(world.url).copy_with(raw_path=path.encode()))
    sent.headers["authorization"] = client.headers["authorization"]
    assert client.send(sent).status_code == status


def test_other_methods(client: httpx2.Client, name: str) -> None:
    answer = client.put(lock(name))
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, HEAD, PATCH, POST")
    assert client.head("/v1/locks").status_code == 200


def test_the_old_python_sdk_is_answered_as_it_expects(client: httpx2.Client, name: str) -> None:
    kinds = dict.fromkeys(("Accept", "Content-Type"), "application/json")
    sdk = kinds | {"User-Agent": "python-requests/2.28.1"}
    own = {"id": acquired(client, name)["id"]}
    assert client.patch(lock(name), params=own | {"ttl": "9"}, headers=sdk).json() == "OK"
    assert client.delete(lock(name), params=own, headers=sdk).json() == "OK"


def test_tokens(client: httpx2.Client) -> None:
    text = client.post("/v1/token")
    assert text.headers["content-type"].startswith("text/plain")
    shape = client.post("/identity/token", headers={"Accept": "application/json"}).json()
    assert set(shape) == {"token", "tenant", "subdomain"}
    for token in (text.text, shape["token"]):
        bearer = {"Authorization": f"Bearer {token}"}
        assert client.get("/v1/locks", headers=bearer).status_code == 200
        again = client.post("/v1/token", headers=bearer)
        assert again.status_code == 403, "else a stolen token would live as long as its key"
