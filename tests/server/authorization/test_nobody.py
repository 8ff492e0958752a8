"""Without a key that is good, nobody is let in."""

from dibs.server.routing import Route
from tests.server.authorization.asking import ask, check_let_in, every_route
from tests.server.authorization.matrix import OWNER, Matrix, client_of


@every_route
def test_nobody_is_let_in(matrix: Matrix, route: Route) -> None:
    methods = [route.method, *(["HEAD"] if route.method == "GET" else [])]
    with client_of(matrix.world) as client:
        for what, header in matrix.nobody.items():
            client.headers.pop("authorization", None)
            if header is not None:
                client.headers["authorization"] = header
            for method in methods:
                status, text = ask(client, route, method=method)
                where = f"{method} {route.path} with {what}"
                if route.needs.kind == "public":
                    check_let_in(status, text, where)
                else:
                    assert status in (401, 405), f"{where}: {status} {text}"
                    assert method == "HEAD" or status == 401
                assert OWNER not in text
                assert matrix.lease_id not in text


def test_a_refusal_says_how_to_come_in(matrix: Matrix) -> None:
    with client_of(matrix.world) as client:
        missing = client.get("/v1/locks")
        bad = client.get("/v1/locks", headers={"authorization": "Bearer dibs_x"})
    for answer in (missing, bad):
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "/problems/unauthenticated"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "invalid_token" in bad.headers["www-authenticate"]
