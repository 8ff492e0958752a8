"""`/v1/locks`: the shapes that clients written for them know, and what there is besides."""

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from secrets import token_urlsafe
from typing import Any

import httpx2
import pytest

from dibs.core.names import fingerprint
from dibs.model import Acquire, Command, Granted, Reply
from dibs.runtime.port import TimedReply
from dibs.server.auth.policy import Principal
from dibs.stores.http.names import decoded
from tests.server.inside import keys_of, observers_of, store_of
from tests.server.world import LONG, World, b64
from tests.servers.waiting import wait_until


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World.over(tmp_path_factory.mktemp("api"))
    yield world
    world.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"tests/{request.node.name}"


def acquired(client: httpx2.Client, name: str | bytes, **query: Any) -> dict[str, Any]:
    answer = acquire(client, name, **query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def acquire(client: httpx2.Client, name: str | bytes, **query: Any) -> httpx2.Response:
    params: dict[str, Any] = {"client-id": "web-3", "ttl": 30} | query
    return client.post(f"/v1/locks/{b64(name)}", params=params)


def waiting(client: httpx2.Client, name: str) -> int:
    found: int = client.get(f"/v1/locks/{b64(name)}").json()["waiting"]
    return found


def test_acquire_renew_release(world: World, name: str) -> None:
    client = world.client("acquire")
    answer = acquire(client, name)
    held = answer.json()
    assert answer.status_code == 200
    assert re.fullmatch(r"[A-Za-z0-9_-]{22,64}", held["id"])
    assert held["sequencer"] > 0
    assert held["ttl"] == 30
    assert 30 - LONG / 2 < held["remaining"] <= 30
    assert answer.headers["location"] == f"/v1/locks/{b64(name)}?kind=lock"
    path = f"/v1/locks/{b64(name)}"
    renewed = client.patch(path, params={"id": held["id"], "ttl": 60})
    assert (renewed.status_code, renewed.json()["title"]) == (200, "Ok")
    assert renewed.json()["remaining"] == pytest.approx(60, abs=5)
    released = client.delete(path, params={"id": held["id"]})
    assert released.json() == {"status": 200, "title": "Ok"}
    assert client.get(path).status_code == 404
    assert acquired(client, name)["sequencer"] > held["sequencer"]


@pytest.fixture
def late(world: World, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How late what the store answers arrives, in seconds: the last one counts."""
    store = store_of(world)
    call, late = store.call, [0.0]

    async def slowly(command: Command, wait: float | None = None) -> TimedReply:
        answer = await call(command, wait)
        await asyncio.sleep(late[-1])
        return answer

    monkeypatch.setattr(store, "call", slowly)
    return late


def test_the_way_of_an_answer_is_not_told_as_time_that_is_left(
    world: World, name: str, late: list[float]
) -> None:
    client, path = world.client("acquire"), f"/v1/locks/{b64(name)}"
    late.append(0.3)
    held = acquired(client, name, ttl=9)
    assert held["remaining"] <= 9 - 0.3
    assert told_end(held) <= time.time() + 9 - 0.3 + TICK
    renewed = client.patch(path, params={"id": held["id"], "ttl": 20}).json()
    assert renewed["remaining"] <= 20 - 0.3
    assert told_end(renewed) <= time.time() + 20 - 0.3 + TICK


def test_a_lease_that_is_over_when_its_answer_comes_is_not_told_as_held(
    world: World, name: str, late: list[float]
) -> None:
    client, path = world.client("acquire"), f"/v1/locks/{b64(name)}"
    late.append(1.1)
    for query in ({}, {"id": "o" * 22}, {"wait": 5}, {"wait": 5, "id": "w" * 22}):
        answer = acquire(client, f"{name}/{len(query)}/{'id' in query}", ttl=1, **query)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
        assert "the same id, if you brought one" in answer.json()["detail"]
    advice = client.get("/problems/unavailable").json()["advice"]
    assert "the same id if you gave one" in advice
    late.append(0.0)
    again = acquired(client, name, ttl=1, id="e" * 22)
    late.append(1.1)
    answer = client.patch(path, params={"id": again["id"], "ttl": 1})
    assert answer.status_code in (503, 410)  # 410: it was over before it was asked for


TICK = 0.002
"""Of what is told in milliseconds, and of clocks that are set meanwhile."""


def told_end(held: dict[str, Any]) -> float:
    return datetime.fromisoformat(held["expires_at"]).timestamp()


def test_held_says_by_whom(world: World, name: str) -> None:
    client = world.client("acquire")
    held = acquired(client, name, note="nightly")
    answer = acquire(client, name)
    problem = answer.json()
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert problem["type"] == "/problems/held"
    assert "is held by web-3 (nightly)" in problem["detail"]
    (holder,) = problem["holders"]
    assert (holder["owner"], holder["note"]) == ("web-3", "nightly")
    assert held["id"] not in answer.text


def test_get_and_lists_in_the_known_shapes(world: World, name: str) -> None:
    admin, other = world.client(), world.client("read")
    held = acquired(admin, f"{name}/a", note="why")
    got = admin.get(f"/v1/locks/{b64(f'{name}/a')}").json()
    assert got["name"] == b64(f"{name}/a").removeprefix("base64:")
    assert got["id"] == fingerprint(held["id"])
    assert got["info"] == {"ttl": 30, "client-id": "web-3", "ip": "127.0.0.1"}
    assert got["holders"][0]["note"] == "why"
    page = other.get(f"/v1/locks/{b64(name)}/").json()
    assert [lock["name"] for lock in page["locks"]] == [got["name"]]
    assert page["locks"][0]["id"] == fingerprint(held["id"])
    assert page["next"] is None


def test_a_lost_lease_is_gone(world: World, name: str) -> None:
    client = world.client()
    held = acquired(client, name)
    path = f"/v1/locks/{b64(name)}"
    client.delete(path, params={"id": held["id"]})
    for answer in (
        client.patch(path, params={"id": held["id"], "ttl": 30}),
        client.delete(path, params={"id": held["id"]}),
    ):
        assert (answer.status_code, answer.json()["type"]) == (410, "/problems/lost")


def test_waiting_in_line(world: World, name: str) -> None:
    client = world.client()
    held = acquired(client, name)
    got: list[httpx2.Response] = []
    waiter = threading.Thread(target=lambda: got.append(acquire(client, name, wait=20)))
    waiter.start()
    wait_until(lambda: waiting(client, name), "somebody in line")
    client.delete(f"/v1/locks/{b64(name)}", params={"id": held["id"]})
    waiter.join(20)
    assert got[0].status_code == 200
    assert got[0].json()["sequencer"] > held["sequencer"]
    assert got[0].json()["remaining"] > 25, "it is confirmed for all of its ttl"


def test_a_wait_that_times_out_says_who_is_in_the_way(world: World, name: str) -> None:
    client = world.client()
    acquired(client, name)
    answer = acquire(client, name, wait=0.2)
    assert answer.status_code == 409
    assert "is held by web-3" in answer.json()["detail"]
    assert answer.json()["position"] == 0
    status = client.get(f"/v1/locks/{b64(name)}").json()
    assert status["waiting"] == 0, "it has left the line"


def test_whoever_hangs_up_leaves_the_line(world: World, name: str) -> None:
    client = world.client()
    acquired(client, name)
    wait = httpx2.Timeout(LONG, read=0.5)
    with pytest.raises(httpx2.ReadTimeout):
        client.post(f"/v1/locks/{b64(name)}", params={"wait": 50}, timeout=wait)
    wait_until(lambda: not waiting(client, name), "nobody in line")


def test_an_id_of_ones_own_makes_retries_safe(world: World, name: str) -> None:
    client = world.client()
    mine = "my-own-id-for-this-lease"
    first = acquired(client, name, id=mine)
    again = acquired(client, name, id=mine)
    assert (first["id"], first["sequencer"]) == (mine, again["sequencer"])
    assert acquire(client, name, id="short").status_code == 400
    assert acquire(client, name, id="with/slash-and-22-letters").status_code == 400


def test_a_semaphore(world: World, name: str) -> None:
    client = world.client()
    held = [acquired(client, name, capacity=3, units=units) for units in (1, 2)]
    assert [each["slots"] for each in held] == [[0], [1, 2]]
    assert acquire(client, name, capacity=3).status_code == 409
    shown = client.get(f"/v1/locks/{b64(name)}", params={"kind": "semaphore"}).json()
    assert (shown["capacity"], shown["kind"], len(shown["holders"])) == (3, "semaphore", 2)
    path = f"/v1/locks/{b64(name)}"
    other = client.get(path, params={"kind": "lock"})
    assert other.status_code == 404, "that is another resource"
    query = {"id": held[0]["id"], "kind": "semaphore"}
    assert client.patch(path, params=query | {"ttl": 30}).status_code == 200
    assert client.delete(path, params=query).status_code == 200


def test_readers_and_a_writer(world: World, name: str) -> None:
    client = world.client()
    readers = [acquired(client, name, mode="read") for _ in range(3)]
    assert acquire(client, name, mode="write").status_code == 409
    for reader in readers:
        query = {"id": reader["id"], "kind": "rwlock"}
        assert client.delete(f"/v1/locks/{b64(name)}", params=query).status_code == 200
    assert acquired(client, name, mode="write")["units"] == 1
    assert acquire(client, name, mode="read").status_code == 409


@pytest.mark.parametrize(
    "query",
    [
        {"ttl": 0}, {"ttl": -1}, {"ttl": "x"}, {"ttl": "nan"}, {"ttl": "inf"}, {"ttl": 0.99},
        {"ttl": 86401}, {"wait": -1}, {"wait": 61}, {"kind": "spoon"}, {"mode": "append"},
        {"mode": "read", "capacity": 3}, {"units": 2}, {"units": 3, "capacity": 2}, {"capacity": 0},
        {"capacity": 1 << 31}, {"kind": "semaphore"}, {"kind": "rwlock"}, {"priority": 1 << 40},
        {"note": "a\x1f b"}, {"note": "x" * 4097}, {"client-id": "a\nb"}, {"client-id": "a\n"},
        {"id": "x" * 22 + "\n"}, {"watt": 5},
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_is_refused(world: World, name: str, query: dict[str, Any]) -> None:
    answer = acquire(world.client(), "refused", **query)
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed")
    for word in query:
        if word in ("ttl", "watt", "priority"):
            assert word in answer.json()["detail"]


@pytest.mark.parametrize("raw", [b"\x00", b"\xff\xfe", b"a b", b"../..", b"/", b"a/", "é".encode()])
def test_names_of_any_bytes(world: World, raw: bytes) -> None:
    client = world.client()
    held = acquired(client, raw)
    assert client.get(f"/v1/locks/{b64(raw)}").json()["id"] == fingerprint(held["id"])
    assert client.delete(f"/v1/locks/{b64(raw)}", params={"id": held["id"]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/locks/base64%3AZm9v", 404),
        ("/v1/locks/base64:Zm9v%2F", 400),
        ("/v1/locks/base64:Zm9v%2f", 400),
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
    ],
)
def test_one_spelling_for_each_name(world: World, path: str, status: int) -> None:
    client = world.client()
    sent = httpx2.Request("GET", httpx2.URL(world.url).copy_with(raw_path=path.encode()))
    sent.headers["authorization"] = client.headers["authorization"]
    answer = client.send(sent)
    assert answer.status_code == status, answer.text


def test_pages(world: World) -> None:
    client = world.client()
    names = sorted(f"pages/{i:02}".encode() for i in range(7))
    for each in names:
        acquired(client, each)
    acquired(client, "pages")
    acquired(client, "pagesize")
    assert listed(client, "pages", limit=3) == names
    assert listed(client, "pages", limit=3, start=names[2]) == names[2:], "`from` is included"
    assert listed(client, "pages", limit=3, start=b"pages/025") == names[3:]
    assert set(listed(client, None, limit=5)) >= {*names, b"pages", b"pagesize"}
    own = world.client("read", prefixes=[b"pages/", b"tests/test_pages/"])
    assert set(listed(own, None, limit=2)) == set(names)
    assert listed(own, "elsewhere", limit=2) == []
    assert client.get("/v1/locks", params={"limit": 1001}).status_code == 400
    assert client.get("/v1/locks", params={"from": "base64:?"}).status_code == 400


def listed(
    client: httpx2.Client, folder: str | None, *, limit: int, start: bytes | None = None
) -> list[bytes]:
    found: list[bytes] = []
    params: dict[str, Any] = {"limit": limit}
    if start is not None:
        params["from"] = b64(start)
    while True:
        path = "/v1/locks" if folder is None else f"/v1/locks/{b64(folder)}/"
        page = client.get(path, params=params).json()
        assert len(page["locks"]) <= limit
        found += [decoded(lock["name"]) for lock in page["locks"]]
        if page["next"] is None:
            return found
        params["from"] = f"base64:{page['next']}"


def test_every_kind_in_one_list(world: World) -> None:
    client = world.client()
    acquired(client, "kinds/a")
    acquired(client, "kinds/a", capacity=2)
    acquired(client, "kinds/b", mode="read")
    acquired(client, "kinds/c", kind="leader")
    params: dict[str, Any] = {"kind": "all", "limit": 1}
    found = []
    while True:
        page = client.get(f"/v1/locks/{b64('kinds')}/", params=params).json()
        found += [(lock["kind"], decoded(lock["name"])) for lock in page["locks"]]
        if page["next"] is None:
            break
        params["from"] = f"base64:{page['next']}"
    assert sorted(found) == [
        ("leader", b"kinds/c"), ("lock", b"kinds/a"), ("rwlock", b"kinds/b"), ("semaphore", b"kinds/a"),
    ]  # fmt: skip


def test_an_etag_changes_with_the_holder_not_with_time(world: World, name: str) -> None:
    client = world.client()
    held = acquired(client, name)
    path = f"/v1/locks/{b64(name)}"
    tag = client.get(path).headers["etag"]
    same = client.get(path, headers={"If-None-Match": f'"x", {tag}'})
    assert (same.status_code, same.content) == (304, b"")
    client.delete(path, params={"id": held["id"]})
    acquired(client, name)
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 200


def test_ending_anothers_lease(world: World, name: str) -> None:
    admin, holder = world.client("force"), world.client("acquire")
    held = acquired(holder, name)
    path = f"/v1/locks/{b64(name)}"
    assert holder.delete(path, params={"force": True, "reason": "x"}).status_code == 403
    assert admin.delete(path, params={"id": held["id"]}).status_code == 403
    assert admin.delete(path, params={"force": True}).status_code == 400
    soft = admin.delete(path, params={"force": True, "reason": "it hangs"}).json()
    assert (soft["count"], soft["ends_in"]) == (1, pytest.approx(30, abs=5))
    assert "cannot renew" in soft["warning"]
    lost = holder.patch(path, params={"id": held["id"], "ttl": 30})
    assert (lost.status_code, lost.json()["detail"]) == (410, "the lease was revoked: it hangs")
    assert acquire(holder, name).status_code == 409, "until its ttl is over"
    hard = admin.delete(path, params={"force": True, "reason": "now", "now": True}).json()
    assert "fencing tokens" in hard["warning"]
    assert acquired(holder, name)["sequencer"] > held["sequencer"]
    client = world.client()
    entries = client.get("/v1/audit").json()["entries"]
    reasons = [
        e["detail"]["reason"] for e in entries if e["what"] == "force release" and e["name"] == name
    ]
    assert reasons == ["now", "it hangs"]


def test_the_old_python_sdk_is_answered_as_it_expects(world: World, name: str) -> None:
    client = world.client()
    sdk = {
        "User-Agent": "python-requests/2.28.1",
        "Accept": "application/json",
        "Content-Type": "application/json",
    }
    held = acquired(client, name)
    path = f"/v1/locks/{b64(name)}"
    assert client.patch(path, params={"id": held["id"], "ttl": 9}, headers=sdk).json() == "OK"
    assert client.delete(path, params={"id": held["id"]}, headers=sdk).json() == "OK"


def test_tokens(world: World, name: str) -> None:
    client = world.client()
    text = client.post("/v1/token")
    assert text.headers["content-type"].startswith("text/plain")
    shape = client.post("/identity/token", headers={"Accept": "application/json"}).json()
    assert set(shape) == {"token", "tenant", "subdomain"}
    for token in (text.text, shape["token"]):
        bearer = {"Authorization": f"Bearer {token}"}
        assert client.get("/v1/locks", headers=bearer).status_code == 200
        again = client.post("/v1/token", headers=bearer)
        assert again.status_code == 403, "else a stolen token would live as long as its key"


def test_what_one_may_not_see_looks_like_nothing(world: World, name: str) -> None:
    acquired(world.client(), name)
    client = world.client("acquire", prefixes=[b"mine/"])
    theirs = client.get(f"/v1/locks/{b64(name)}")
    nobodys = client.get(f"/v1/locks/{b64('mine/nothing')}")
    assert (theirs.status_code, theirs.content) == (404, nobodys.content)
    answer = acquire(client, name)
    assert answer.status_code == 403
    assert "scope acquire for the directory tests/" in answer.json()["detail"]
    assert "web-3" not in answer.text


def test_a_revoked_keys_wait_ends(world: World, name: str) -> None:
    acquired(world.client(), name)
    key = world.key("acquire")
    got: list[httpx2.Response] = []
    client = world.client(key=key)
    waiter = threading.Thread(target=lambda: got.append(acquire(client, name, wait=50)))
    waiter.start()
    admin = world.client()
    wait_until(lambda: waiting(admin, name), "somebody in line")
    world.do(lambda: keys_of(world).revoke(key.split("_")[1]))
    waiter.join(20)
    assert (got[0].status_code, "revoked or expired" in got[0].text) == (401, True)
    assert client.get("/v1/locks").status_code == 401


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_where_none_is_looked_at_is_refused(
    world: World, name: str, *, chunked: bool
) -> None:
    """Whoever writes `-d '{"ttl": 5}'` would else get a ttl of 30 seconds."""
    client = world.client("acquire")
    path = f"/v1/locks/{b64(name)}"

    def sent(method: str, body: bytes) -> httpx2.Response:
        return client.request(method, path, content=iter([body]) if chunked else body)

    for method in ("POST", "PATCH", "DELETE", "GET"):
        answer = sent(method, b'{"ttl": 5}')
        assert answer.status_code == 400, method
        assert "query" in answer.json()["detail"]
    assert client.get(path).status_code == 404, "nothing was acquired"


@pytest.mark.parametrize("ttl", ["0", "-1", "0.5", "1e12", "nan"])
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_ttl_out_of_bounds_is_told_the_bounds(world: World, method: str, ttl: str) -> None:
    query = {"ttl": ttl, "id": token_urlsafe(16)}
    answer = world.client().request(method, f"/v1/locks/{b64('x')}", params=query)
    assert answer.status_code == 400
    assert "must be 1 to 86400 seconds" in answer.json()["detail"]


def test_other_methods(world: World) -> None:
    client = world.client()
    answer = client.put(f"/v1/locks/{b64('x')}")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, HEAD, PATCH, POST")
    assert client.head("/v1/locks").status_code == 200


def test_a_lease_id_may_stand_in_a_header(world: World, name: str) -> None:
    """So that no log of queries has it."""
    client, path, mine = world.client(), f"/v1/locks/{b64(name)}", token_urlsafe(16)
    header = {"Dibs-Lease-Id": mine}
    assert client.post(path, headers=header).json()["id"] == mine
    assert client.get(path, headers=header).status_code == 200
    assert client.patch(path, headers=header, params={"ttl": 60}).status_code == 200
    both = client.patch(path, headers=header, params={"id": mine})
    assert (both.status_code, both.json()["type"]) == (400, "/problems/malformed")
    assert client.post(path, headers={"Dibs-Lease-Id": "short"}).status_code == 400
    assert client.delete(path, headers=header).status_code == 200


def test_a_lease_id_may_stand_in_the_body(world: World, name: str) -> None:
    client, path, mine = world.client(), f"/v1/locks/{b64(name)}", token_urlsafe(16)

    def send(method: str, **more: Any) -> httpx2.Response:
        return client.request(method, path, **{"json": {"id": mine}} | more)

    assert send("POST").json()["id"] == mine
    assert send("POST", params={"wait": 1}).json()["id"] == mine, "it is acquired already"
    assert send("PATCH", params={"ttl": 60}).json()["remaining"] > 30
    for twice in ({"params": {"id": mine}}, {"headers": {"Dibs-Lease-Id": mine}}):
        for method in ("POST", "PATCH", "DELETE"):
            both = send(method, **twice)
            assert (both.status_code, both.json()["type"]) == (400, "/problems/malformed"), both
    force = {"force": True, "now": True, "reason": "a test"}
    assert send("DELETE", json={"id": "another"}, params=force).status_code == 404
    assert send("DELETE").status_code == 200
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
def test_another_body_than_a_lease_id_is_refused(world: World, name: str, method: str) -> None:
    client, path = world.client(), f"/v1/locks/{b64(name)}"
    for body in ("{}", "[]", '{"id": 7}', '{"id": ""}', '{"id": "x", "ttl": 3}', "id=x", "\xff"):
        answer = client.request(method, path, content=body.encode("latin-1"))
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed"), body
    large = client.request(method, path, json={"id": "x" * 1024})
    assert (large.status_code, large.json()["type"]) == (413, "/problems/body-too-large")
    nothing = client.request(method, path, content=iter([b""]))
    assert nothing.status_code == (200 if method == "POST" else 400), "without a length it is empty"
    assert method == "POST" or "give the lease" in nothing.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/locks?limit=null", "/v1/audit?before=null"])
def test_null_is_no_value(world: World, path: str) -> None:
    assert world.client().get(path).status_code == 400


pytestmark = pytest.mark.once


@pytest.mark.parametrize("wait", [0, 5])
def test_all_that_was_asked_for_is_told(servers: tuple[World, World], wait: float) -> None:
    """Also of one that may wait for its turn."""
    seen: list[tuple[Command, Reply]] = []

    def see(_: Principal, command: Command, reply: Reply) -> None:
        seen.append((command, reply))

    observers = observers_of(servers[0])
    observers.append(see)
    name = f"watched/{wait}"
    query = {"capacity": 3, "units": 2, "priority": 7, "note": "nightly", "wait": wait}
    held = acquired(servers[0].client(), name, **query)
    observers.remove(see)
    ((command, reply),) = seen
    assert type(command) is Acquire
    assert (command.key, command.id) == (f"semaphore:{name}".encode(), held["id"])
    assert (command.owner, command.ttl) == ("web-3", 30)
    assert (command.units, command.capacity, command.priority) == (2, 3, 7)
    assert command.queue is bool(wait)
    assert command.note.startswith("nightly")
    assert type(reply) is Granted
    assert (reply.token, reply.slots) == (held["sequencer"], tuple(held["slots"]))
