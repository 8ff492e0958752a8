"""What is done with keys, what is written down of it, and how names are judged."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dibs.core.names import fingerprint
from dibs.server.auth.policy import Scope
from dibs.stores.http.names import encoded
from tests.server.authorization.matrix import INSIDE, NAME, OWNER, Matrix, check_refused, client_of
from tests.server.world import World, acquire, acquired, batch, lock


def test_an_administrator_of_a_directory_gives_out_keys_for_that_only(matrix: Matrix) -> None:
    inside = matrix.one(Scope.ADMIN, INSIDE)
    outside = matrix.one(Scope.ADMIN, b"matrix/other/")
    body = {"name": "made by the matrix", "scopes": ["force"]}
    others = (["matrix/"], ["matrix/other/"], ["matrix/in/", "matrix/other/"], ["matrix/i"])
    for beyond in ([], *others):
        answer = inside.post("/v1/keys", json=body | {"prefixes": beyond})
        check_refused(answer.status_code, answer.text, f"a key for {beyond}")
    made = inside.post("/v1/keys", json=body | {"prefixes": ["matrix/in/sub"]})
    key = made.json()
    assert made.headers["location"] == f"/v1/keys/{key['id']}"
    assert key["prefixes"] == ["matrix/in/sub/"]
    for client, sees in ((inside, True), (outside, False)):
        listed = client.get("/v1/keys").json()["keys"]
        assert (key["id"] in {each["id"] for each in listed}) is sees
        assert not any("key" in each or "digest" in each for each in listed)
    for client, status in ((outside, 404), (inside, 200)):
        assert client.delete(f"/v1/keys/{key['id']}").status_code == status
    with client_of(matrix.world, key["key"]) as client:
        assert client.get("/v1/locks").status_code == 401


@pytest.mark.once
def test_a_revocation_reaches_another_server_and_what_waits_there(tmp_path: Path) -> None:
    with World.over(tmp_path) as here, World.over(tmp_path) as there, ThreadPoolExecutor() as pool:
        admin = here.client()
        made = admin.post("/v1/keys", json={"name": "short", "scopes": ["acquire"]}).json()
        acquired(admin, NAME)
        client = there.client(key=made["key"])
        token = client.post("/v1/token").text
        with client.stream("GET", "/v1/stream") as stream:
            lines = stream.iter_lines()
            assert "hello" in next(lines)
            waits = pool.submit(acquire, client, NAME, wait=30)
            assert admin.delete(f"/v1/keys/{made['id']}").status_code == 200
            assert "data: key ended" in list(lines)
        assert waits.result(30).status_code == 401
        for credential in (made["key"], token):
            assert there.client(key=credential).get("/v1/locks").status_code == 401


def test_what_was_refused_or_forced_stands_in_the_audit() -> None:
    with World.over() as world:
        admin = world.client()
        reader, inside = (world.client(scope, prefixes=[INSIDE]) for scope in ("read", "admin"))
        for path in ("/v1/audit", "/v1/keys"):
            assert reader.get(path).status_code == 403
        assert acquire(reader, NAME).status_code == 403
        revoke = {"op": "revoke", "key": f"lock:{NAME.decode()}", "lease": None, "reason": "why"}
        assert batch(reader, revoke)[0]["reason"] == "forbidden"
        lines = admin.get("/v1/audit").json()["entries"]
        assert [line["detail"]["tried"] for line in lines if line["what"] == "denied"] == [
            "revoke in POST /v1/batch",
            "POST /v1/locks/{name}",
            "GET /v1/keys",
            "GET /v1/audit",
        ]
        seen = inside.get("/v1/audit").json()["entries"]
        assert [line["name"] for line in seen] == [NAME.decode()] * 2
        lease_id = acquired(admin, NAME)["id"]
        force = {"id": lease_id, "force": "true", "reason": "a test"}
        assert admin.delete(lock(NAME), params=force).status_code == 200
        answer = admin.get("/v1/audit")
        newest = answer.json()["entries"][0]
        assert (newest["what"], newest["name"]) == ("force release", NAME.decode())
        assert newest["detail"]["lease"] == fingerprint(lease_id)
        assert lease_id not in answer.text


def test_a_name_has_one_spelling_and_is_judged_by_its_bytes(matrix: Matrix) -> None:
    outsider = matrix.one(Scope.ACQUIRE, b"matrix/other/")
    good, other = encoded(NAME), encoded(b"matrix/other/")
    for path in (
        f"/v1/locks/base64%3A{good}",
        *(f"/v1/locks/base64:{good}{more}" for more in ("%3D", "%00", "%2F")),
        f"/v1/locks/base64:{encoded(b'matrix/other/../in/x')}/../base64:{good}",
        f"/v1/locks/base64:{other}%2F..%2Fbase64:{good}",
        *(f"{root}/base64:{good}" for root in ("/v1/watch%2flocks", "/v1//locks", "/V1/locks")),
    ):
        answer = outsider.post(path, params={"ttl": 10})
        assert answer.status_code in (400, 403, 404, 405), path
        assert OWNER not in answer.text
