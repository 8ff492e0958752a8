"""The applications of the pages about Flask, Starlette and FastAPI, and what they answer."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from flask import Blueprint, Flask
from starlette.routing import Route
from starlette.testclient import TestClient

import dibs.sync
from dibs.contrib.flask import problems
from dibs.sync import Lock
from tests.pages import blocks
from tests.servers.ports import free_port


@contextmanager
def flask_page(url: str, **more: Any) -> Iterator[Any]:
    found: dict[str, Any] = {"__name__": "app"}
    exec(blocks("integrations/flask.md")[0], found)
    for path, view in more.items():
        found["app"].add_url_rule(f"/{path}", view_func=view, methods=["POST"])
    with dibs.sync.connect(url, default=True):
        yield found["app"].test_client()


@contextmanager
def starlette_page(url: str, **more: Any) -> Iterator[Any]:
    found: dict[str, Any] = {}
    exec(re.sub(r'redis://[^"]*', url, blocks("integrations/starlette.md")[0]), found)
    found["app"].router.routes += [
        Route(f"/{path}", view, methods=["POST"]) for path, view in more.items()
    ]
    with TestClient(found["app"], raise_server_exceptions=False) as client:
        yield client


@contextmanager
def fastapi_page(url: str, **more: Any) -> Iterator[Any]:
    def lost() -> None:
        more["lost"]()

    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIBS_URL", url)
        exec(blocks("how-to/fastapi.md")[0].replace("sleep(3)", "sleep(0)"), found)
    found["app"].post("/lost")(lost)
    with TestClient(found["app"], raise_server_exceptions=False) as client:
        yield client


def content(answer: Any) -> Any:
    return json.loads(answer.text)


PAGES = {
    "integrations/flask.md": flask_page,
    "integrations/starlette.md": starlette_page,
    "how-to/fastapi.md": fastapi_page,
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page(name: str) -> None:
    page: Any = PAGES[name]

    def lost(*request: object) -> None:
        with Lock("a") as lease:
            other.revoke(next(other.list()), reason="a test", now=True)
            assert lease.wait_lost(20)

    with dibs.sync.connect(f"memory://{uuid4()}") as other, page(other.url, lost=lost) as client:
        done = client.post("/orders/042/pay")
        assert (done.status_code, content(done)["order"]) == (200, 42)
        assert content(done)["token"] > 0
        with other.lock("order:42", ttl="20s", note="by hand") as lease:
            busy = client.post("/orders/42/pay")
        wrong, failed = client.post(f"/orders/{'1' * 600}/pay"), client.post("/lost")
    assert (busy.status_code, busy.headers["retry-after"]) == (409, "5")
    shown = "".join(blocks(name, "json") or blocks(name, "console"))
    assert content(busy) == json.loads(re.findall(r"^{.*?}", shown, re.MULTILINE | re.DOTALL)[0])
    assert (wrong.status_code, content(wrong)["type"]) == (400, "urn:dibs:problem:name")
    assert (failed.status_code, content(failed)["reason"]) == (500, "revoked")
    for answer in (busy, wrong, failed):
        assert answer.headers["content-type"] == "application/problem+json"
        assert not {lease.owner, "by hand"} & set(answer.text.split('"'))
    with page(f"redis://127.0.0.1:{free_port()}/0") as client:
        away = client.post("/orders/42/pay")
    assert (away.status_code, away.headers["retry-after"]) == (503, "1")


def test_another_status_and_holders_of_a_blueprint() -> None:
    app, internal = Flask(__name__), Blueprint("internal", __name__)

    def view() -> str:
        return "done"

    with dibs.sync.connect(f"memory://{uuid4()}") as other:
        internal.get("/internal")(Lock.wraps("a", wait=0, client=other)(view))
        problems(internal, status=423, disclose=True)
        app.register_blueprint(internal)
        with ThreadPoolExecutor(1) as elsewhere, other.lock("a", note="by hand"):
            answer = elsewhere.submit(app.test_client().get, "/internal").result()
    assert (answer.status_code, content(answer)["key"]) == (423, "lock:a")
    assert content(answer)["holders"][0]["note"] == "by hand"
    with pytest.raises(ValueError, match="status is 200"):
        problems(app, status=200)
