"""A request's span: whose trace it is in, what it contains, and whose trace it is linked to."""

import sys
from collections.abc import Iterator

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from tests.server.world import LONG, Client, Patch, Pool, World, b64, lock
from tests.servers.waiting import wait_until
from tests.traced import Traces, about, ids, links, parent, traces_kept

pytestmark = pytest.mark.once

LOCK = "/v1/locks/{name}"
SECRET_NAME = "payroll/x"
CALLER = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


@pytest.fixture
def traces() -> Iterator[Traces]:
    with traces_kept() as traces:
        yield traces


@pytest.fixture
def world(traces: Traces) -> Iterator[World]:
    with World.over() as world:
        yield world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def traceparent(span: tuple[int, int] = CALLER, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{span[0]:032x}-{span[1]:016x}-{flags}"}


ATTRIBUTES = {
    *("http.request.method", "http.request.method_original", "http.route"),
    *("http.response.status_code", "url.scheme", "server.address", "server.port"),
    *("network.protocol.version", "error.type"),
    *("dibs.command", "dibs.kind", "dibs.reply", "dibs.commands", "dibs.waited"),
}
"""All that there are."""


def test_a_span_of_a_request(traces: Traces, world: World, client: Client) -> None:
    path = lock(SECRET_NAME)
    held = client.post(path, params={"ttl": 60, "note": "for pay"}, headers=traceparent()).json()
    span = traces.one(f"POST {LOCK}")
    assert (span.kind, parent(span)) == (SpanKind.SERVER, CALLER)
    assert span.status.status_code is StatusCode.UNSET
    assert about(span) == {
        "http.request.method": "POST",
        "http.route": LOCK,
        "http.response.status_code": 200,
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "server.address": "127.0.0.1",
        "server.port": int(world.url.rpartition(":")[2]),
        "dibs.command": "acquire",
        "dibs.kind": "lock",
        "dibs.reply": "granted",
    }
    client.release(SECRET_NAME, held)
    with client.stream("GET", "/v1/stream"):  # its span ends where it begins
        assert about(traces.one("GET /v1/stream"))["http.response.status_code"] == 200


def test_no_span_has_what_a_caller_sends(traces: Traces, monkeypatch: Patch) -> None:
    """Also if the operator has OpenTelemetry look at headers."""
    for which in ("REQUEST", "RESPONSE"):
        monkeypatch.setenv(f"OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_SERVER_{which}", ".*")
    secrets = {name: f"mark-of-{name}" for name in ("name", "note", "query", "agent", "path")}
    path, query = lock(secrets["name"]), {"unknown": secrets["query"]}
    with World.over() as other:
        client = other.client()
        client.headers |= {"user-agent": secrets["agent"], "x-forwarded-for": "1.2.3.4"}
        owner = {"client-id": secrets["query"]}
        held = client.acquired(secrets["name"], note=secrets["note"], **owner)
        requests = [
            ("POST", path, {}),
            ("PATCH", path, {"headers": {"dibs-lease-id": secrets["query"]}}),
            ("GET", f"/v1/locks/{secrets['name']}", {}),
            ("GET", f"/{secrets['path']}", {"params": query}),
            ("GET", f"/ui/{secrets['path']}", {}),
            ("GET", "/v1/locks", {"params": query}),
            ("PROPFIND", f"/{secrets['path']}", {}),
            ("GET", f"/v1/watch/locks/{secrets['name']}", {}),
            ("DELETE", path, {"params": {"id": "x" * 22}}),
        ]
        for method, url, more in requests:
            client.request(method, url, **more)  # type: ignore[arg-type]
        with client.stream("GET", "/v1/events", params={"prefix": b64("mark-")}) as stream:
            next(stream.iter_lines())
        client.release(secrets["name"], held)
        traces.some(f"DELETE {LOCK}", 2)
    assert len(traces.ended) >= len(requests) + 3
    hidden = [*secrets.values(), b64(secrets["name"]), held["id"], "x" * 22, "mark", "1.2.3.4"]
    hidden += [other.admin_key, other.admin_key.split("_")[1]]
    assert not [secret for secret in hidden if secret in traces.text]
    for span in traces.ended:
        assert set(about(span)) <= ATTRIBUTES, span.name


def test_waits_are_linked_to_holders(
    traces: Traces, client: Client, world: World, pool: Pool
) -> None:
    """Unless that one's trace is not kept."""
    held = client.acquired("x", note="mine")
    refused = client.acquire("x")
    assert [each["note"] for each in refused.json()["holders"]] == ["mine"]
    with pytest.raises(httpx2.ReadTimeout):
        world.client().post(lock("x"), params={"wait": 30}, timeout=httpx2.Timeout(0.3))
    first, second, left = traces.some(f"POST {LOCK}", 3)
    assert [links(each) for each in (first, second, left)] == [[], [ids(first)], [ids(first)]]
    assert about(second)["dibs.reply"] == "refused"
    assert about(left)["error.type"] == "hung_up"
    assert "http.response.status_code" not in about(left)
    assert {each.status.status_code for each in (second, left)} == {StatusCode.UNSET}
    waits = pool.submit(client.acquired, "x", wait=30)
    wait_until(lambda: client.waiting("x"), "it waits")
    client.release("x", held)
    waits.result(LONG)
    waited = traces.some(f"POST {LOCK}", 4)[3]
    assert links(waited) == [ids(first)]
    assert ids(waited) in [parent(span) for span in traces.some("dibs.wait", 2)]
    assert 0 < about(waited)["dibs.waited"] < LONG
    assert about(waited)["dibs.reply"] == "granted"
    traces.clear()
    assert client.post(lock("unsampled"), headers=traceparent(flags="00")).is_success
    assert client.acquire("unsampled").status_code == 409
    assert links(traces.one(f"POST {LOCK}")) == []


@pytest.mark.parametrize(
    "missing", ["a provider", "opentelemetry", "opentelemetry.instrumentation.asgi"]
)
def test_a_server_runs_without_opentelemetry(
    traces: Traces, caplog: pytest.LogCaptureFixture, monkeypatch: Patch, missing: str
) -> None:
    monkeypatch.delitem(sys.modules, "dibs.server.tracing", raising=False)
    if missing == "a provider":
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    else:
        monkeypatch.setitem(sys.modules, missing, None)
    with World.over() as world:
        assert not world.server.tracing
        world.client().acquired("x")
    warning = f"requests are not traced: {missing} is missing. Run: pip install"
    assert (warning in caplog.text) == missing.endswith("asgi")
