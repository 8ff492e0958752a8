"""What is done with keys, what is written down of it, and how names are judged."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dibs.core.names import fingerprint
from dibs.server.auth.keys import KeyService
from dibs.server.auth.policy import Scope
from dibs.stores.http.names import encoded
from tests.server.authorization.asking import check_refused
from tests.server.authorization.matrix import INSIDE, NAME, OWNER, Matrix, Someone, client_of
from tests.server.inside import keys_of
from tests.server.world import World, b64


def keys_shown_to(who: Someone) -> Iterable[dict[str, Any]]:
    found: list[dict[str, Any]] = who.client.get("/v1/keys").json()["keys"]
    return found


def test_an_administrator_of_a_directory_gives_out_keys_for_that_only(matrix: Matrix) -> None:
    inside = next(
        who for who in matrix.everybody if (who.scope, who.directories) == (Scope.ADMIN, (INSIDE,))
    )
    outside = next(
        who
        for who in matrix.everybody
        if (who.scope, who.directories) == (Scope.ADMIN, (b"matrix/other/",))
    )
    body = {"name": "made by the matrix", "scopes": ["force"]}
    for beyond in (
        [],
        ["matrix/"],
        ["matrix/other/"],
        ["matrix/in/", "matrix/other/"],
        ["matrix/i"],
    ):
        answer = inside.client.post("/v1/keys", json=body | {"prefixes": beyond})
        check_refused(answer.status_code, answer.text, f"a key for {beyond}")
    made = inside.client.post("/v1/keys", json=body | {"prefixes": ["matrix/in/sub"]})
    assert made.status_code == 201
    key = made.json()
    assert made.headers["location"] == f"/v1/keys/{key['id']}"
    assert key["prefixes"] == ["matrix/in/sub/"]
    assert key["id"] in {each["id"] for each in keys_shown_to(inside)}
    assert key["id"] not in {each["id"] for each in keys_shown_to(outside)}
    assert not any("key" in each or "digest" in each for each in keys_shown_to(inside))
    for who, status in ((outside, 404), (inside, 200)):
        assert who.client.delete(f"/v1/keys/{key['id']}").status_code == status
    with client_of(matrix.world) as client:
        client.headers["authorization"] = f"Bearer {key['key']}"
        assert client.get("/v1/locks").status_code == 401


def test_a_stream_ends_with_its_key(matrix: Matrix) -> None:
    world = matrix.world
    ring: KeyService = keys_of(world)
    principal, text = world.do(lambda: ring.create("short", {Scope.READ}, []))
    client = world.client(key=text)
    with client.stream("GET", "/v1/stream") as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()
        assert "hello" in next(lines)
        world.client().delete(f"/v1/keys/{principal.key_id}")
        for _ in lines:
            pass  # it comes to its end
    assert client.get("/v1/locks").status_code == 401


@pytest.mark.once
def test_a_revocation_reaches_another_server_and_what_waits_there(tmp_path: Path) -> None:
    here, there = World.over(tmp_path), World.over(tmp_path)
    try:
        admin = client_of(here, here.admin_key)
        made = admin.post("/v1/keys", json={"name": "short", "scopes": ["acquire"]}).json()
        path = f"/v1/locks/{b64(NAME)}"
        assert admin.post(path, params={"ttl": 60}).status_code == 200
        with client_of(there, made["key"]) as client, ThreadPoolExecutor(1) as pool:
            token = client.post("/v1/token").text
            with client.stream("GET", "/v1/stream") as stream:
                lines = stream.iter_lines()
                assert "hello" in next(lines)
                waiting = pool.submit(client.post, path, params={"ttl": 9, "wait": 30})
                assert admin.delete(f"/v1/keys/{made['id']}").status_code == 200
                for _ in lines:
                    pass  # it comes to its end
            assert waiting.result(30).status_code == 401
            for credential in (made["key"], token):
                client.headers["authorization"] = f"Bearer {credential}"
                assert client.get("/v1/locks").status_code == 401
        admin.close()
    finally:
        here.close()
        there.close()


def test_what_was_refused_stands_in_the_audit() -> None:
    world = World.over()
    try:
        reader, inside = (world.client(scope, prefixes=[INSIDE]) for scope in ("read", "admin"))
        for path in ("/v1/audit", "/v1/keys"):
            assert reader.get(path).status_code == 403
        assert reader.post(f"/v1/locks/{b64(NAME)}", params={"ttl": 9}).status_code == 403
        revoke = {
            "op": "revoke",
            "key": encoded(b"lock:" + NAME),
            "lease": None,
            "reason": "a test",
        }
        answer = reader.post("/v1/batch", json={"commands": [revoke]})
        assert answer.json()["replies"][0]["reason"] == "forbidden"
        lines = world.client().get("/v1/audit").json()["entries"]
        assert [line["detail"]["tried"] for line in lines if line["what"] == "denied"] == [
            "revoke in POST /v1/batch",
            "POST /v1/locks/{name}",
            "GET /v1/keys",
            "GET /v1/audit",
        ]
        seen = inside.get("/v1/audit").json()["entries"]
        assert [line["name"] for line in seen] == [NAME.decode()] * 2
        _check_that_force_is_audited_without_ids(world)
    finally:
        world.close()


def _check_that_force_is_audited_without_ids(world: World) -> None:
    path, admin = f"/v1/locks/{b64(NAME)}", world.client()
    held = admin.post(path, params={"ttl": 60}).json()
    force = {"id": held["id"], "force": "true", "reason": "a test"}
    assert admin.delete(path, params=force).status_code == 200
    answer = admin.get("/v1/audit")
    newest = answer.json()["entries"][0]
    assert (newest["what"], newest["name"]) == ("force release", NAME.decode())
    assert newest["detail"]["lease"] == fingerprint(held["id"])
    assert held["id"] not in answer.text


def test_a_name_has_one_spelling_and_is_judged_by_its_bytes(matrix: Matrix) -> None:
    outsider = next(
        who
        for who in matrix.everybody
        if (who.scope, who.directories) == (Scope.ACQUIRE, (b"matrix/other/",))
    )
    good = encoded(NAME)
    for path in (
        f"/v1/locks/base64%3A{good}",
        f"/v1/locks/base64:{good}%3D",
        f"/v1/locks/base64:{good}%00",
        f"/v1/locks/base64:{encoded(b'matrix/other/../in/x')}/../base64:{good}",
        f"/v1/locks/base64:{encoded(b'matrix/other/')}%2F..%2Fbase64:{good}",
        f"/v1/locks/base64:{good}%2F",
        f"/v1/watch%2flocks/base64:{good}",
        f"/v1//locks/base64:{good}",
        f"/V1/locks/base64:{good}",
    ):
        answer = outsider.client.post(path, params={"ttl": 10})
        assert answer.status_code in (400, 403, 404, 405), path
        assert OWNER not in answer.text
