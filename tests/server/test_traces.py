"""A request's span: whose trace it is in, what it says, and whose trace it is linked to."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from dibs.model import Acquire, Command
from dibs.stores.http import wire
from tests.server.inside import health_of, is_traced
from tests.server.world import LONG, World, b64
from tests.servers.waiting import wait_until
from tests.traced import Traces, about, ids, links, parent, traces_kept

pytestmark = pytest.mark.once

LOCK = "/v1/locks/{name}"
SECRET_NAME = "payroll/x"
CALLER = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


@pytest.fixture(scope="module")
def kept() -> Iterator[Traces]:
    with traces_kept() as traces:
        yield traces


@pytest.fixture(scope="module")
def world(kept: Traces) -> Iterator[World]:
    world = World.over()
    yield world
    world.close()


@pytest.fixture
def traces(kept: Traces, world: World) -> Traces:
    kept.clear()
    return kept


@pytest.fixture(scope="module")
def client(world: World) -> httpx2.Client:
    return world.client()


def traceparent(span: tuple[int, int] = CALLER, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{span[0]:032x}-{span[1]:016x}-{flags}"}


def acquired(client: httpx2.Client, name: str, **params: Any) -> Any:
    answer = client.post(f"/v1/locks/{b64(name)}", params={"ttl": 60, **params})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_what_a_span_says(traces: Traces, world: World, client: httpx2.Client) -> None:
    path = f"/v1/locks/{b64(SECRET_NAME)}"
    held = client.post(path, params={"ttl": 60, "note": "for pay"}, headers=traceparent()).json()
    span = traces.one(f"POST {LOCK}")
    assert (span.kind, parent(span), span.status.status_code) == (
        SpanKind.SERVER,
        CALLER,
        StatusCode.UNSET,
    )
    port = int(world.url.rpartition(":")[2])
    assert about(span) == {
        "http.request.method": "POST",
        "http.route": LOCK,
        "http.response.status_code": 200,
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "server.address": "127.0.0.1",
        "server.port": port,
        "dibs.command": "acquire",
        "dibs.kind": "lock",
        "dibs.reply": "granted",
    }
    assert client.delete(path, params={"id": held["id"]}).status_code == 200
    assert client.get(f"/{SECRET_NAME}").status_code == 404
    assert about(traces.one("GET"))["http.response.status_code"] == 404
    secrets = (SECRET_NAME, b64(SECRET_NAME), held["id"], world.admin_key, "for pay")
    assert not [secret for secret in secrets if secret in traces.text]


def test_no_span_contains_what_a_caller_sends(
    traces: Traces, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what it gets: also if the operator has OpenTelemetry look at headers."""
    for which in ("REQUEST", "RESPONSE"):
        monkeypatch.setenv(f"OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_SERVER_{which}", ".*")
    other = World.over()
    client = other.client()
    marks = {name: f"mark-of-{name}" for name in ("name", "note", "query", "agent", "host", "path")}
    client.headers |= {
        "user-agent": marks["agent"],
        "host": marks["host"],
        "x-forwarded-for": "1.2.3.4",
    }
    path = f"/v1/locks/{b64(marks['name'])}"
    got = [
        client.post(path, params={"ttl": 60, "note": marks["note"], "client-id": marks["query"]}),
        client.post(path, params={"ttl": 60}),
        client.patch(path, params={"ttl": 60}, headers={"dibs-lease-id": marks["query"]}),
        client.get(f"/v1/locks/{marks['name']}"),
        client.get(f"/{marks['path']}", params={"q": marks["query"]}),
        client.get(f"/ui/{marks['path']}"),
        client.get("/v1/locks", params={"prefix": b64("/"), "unknown": marks["query"]}),
        client.request("PROPFIND", f"/{marks['path']}"),
        client.get(f"/v1/watch/locks/{marks['name']}"),
        client.delete(path, params={"id": "x" * 22}),
    ]
    assert got[0].status_code == 200
    with client.stream("GET", "/v1/events", params={"prefix": "base64:bWFyay0"}) as stream:
        next(stream.iter_lines())
    lease_id = got[0].json()["id"]
    assert client.delete(path, params={"id": lease_id}).status_code == 200
    traces.some(f"DELETE {LOCK}", 2)
    other.close()
    assert len(traces.ended) >= len(got) + 2
    secrets = [*marks.values(), b64(marks["name"]), lease_id, "x" * 22, "mark", "1.2.3.4"]
    secrets += [other.admin_key, other.admin_key.split("_")[1]]
    assert not [secret for secret in secrets if secret in traces.text]
    for span in traces.ended:
        assert set(about(span)) <= TOLD, span.name


TOLD = {
    *("http.request.method", "http.request.method_original", "http.route"),
    *("http.response.status_code", "url.scheme", "server.address", "server.port"),
    *("network.protocol.version", "error.type"),
    *("dibs.command", "dibs.kind", "dibs.reply", "dibs.commands", "dibs.waited"),
}
"""All attributes that there are."""


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"nonsense",
        b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01",
        b"00-" + "é".encode() * 100,
        b"\xff\\x",
    ],
)
def test_a_caller_that_says_nothing_of_a_trace(
    traces: Traces, client: httpx2.Client, header: bytes
) -> None:
    answer = client.get("/livez", headers={b"traceparent": header})
    assert answer.status_code == 200
    assert parent(traces.one("GET /livez")) == (0, 0)


def test_whoever_is_refused_is_linked_to_the_holder(traces: Traces, client: httpx2.Client) -> None:
    acquired(client, "refused", note="mine")
    refused = client.post(f"/v1/locks/{b64('refused')}", params={"ttl": 60})
    assert refused.status_code == 409
    assert [each["note"] for each in refused.json()["holders"]] == ["mine"]
    first, second = traces.some(f"POST {LOCK}", 2)
    assert links(second) == [ids(first)]
    assert about(second)["dibs.reply"] == "refused"
    assert (links(first), second.status.status_code) == ([], StatusCode.UNSET)


def test_whoever_waits_is_linked_too_and_says_how_long(
    traces: Traces, client: httpx2.Client, world: World
) -> None:
    held = acquired(client, "waited")
    path = f"/v1/locks/{b64('waited')}"
    waiter = threading.Thread(target=acquired, args=(world.client(), "waited"), kwargs={"wait": 30})
    waiter.start()
    wait_until(lambda: client.get(path).json()["waiting"], "it waits")
    assert client.delete(path, params={"id": held["id"]}).status_code == 200
    waiter.join(LONG)
    first, second = traces.some(f"POST {LOCK}", 2)
    wait = traces.one("dibs.wait")
    assert (parent(wait), links(second)) == (ids(second), [ids(first)])
    assert 0 < about(second)["dibs.waited"] < LONG
    assert about(second)["dibs.reply"] == "granted"


def test_whoever_waits_and_leaves(traces: Traces, client: httpx2.Client, world: World) -> None:
    acquired(client, "left")
    impatient = world.client()
    with pytest.raises(httpx2.ReadTimeout):
        impatient.post(
            f"/v1/locks/{b64('left')}", params={"ttl": 60, "wait": 30}, timeout=httpx2.Timeout(0.3)
        )
    first, second = traces.some(f"POST {LOCK}", 2)
    assert links(second) == [ids(first)]
    told = about(second)
    assert told["error.type"] == "hung_up"
    assert "http.response.status_code" not in told
    assert second.status.status_code is StatusCode.UNSET


def test_a_holder_that_nobody_keeps_the_trace_of_is_linked_to_by_nobody(
    traces: Traces, client: httpx2.Client
) -> None:
    path = f"/v1/locks/{b64('unsampled')}"
    assert client.post(path, params={"ttl": 60}, headers=traceparent(flags="00")).is_success
    assert client.post(path, params={"ttl": 60}).status_code == 409
    assert links(traces.one(f"POST {LOCK}")) == []


def test_a_batch(traces: Traces, client: httpx2.Client) -> None:
    """Each of its acquires may say whose trace it is in; of several nobody else knows."""

    def asked(*acquires: Command) -> list[str]:
        body = msgspec.json.encode(wire.Batch(tuple(map(wire.to_wire, acquires))))
        answer = client.post("/v1/batch", content=body)
        assert answer.status_code == 200, answer.text
        return [each["is"] for each in answer.json()["replies"]]

    def one(name: bytes, lease: str, trace: str = "", *, queue: bool = False) -> Acquire:
        return Acquire(b"lock:" + name, lease * 22, "me", 60.0, trace=trace, queue=queue)

    caller = f"00-{CALLER[0]:032x}-{CALLER[1]:016x}-01"
    assert asked(one(b"b1", "a", caller), one(b"b2", "b", "no trace")) == ["granted"] * 2
    assert asked(one(b"b3", "c")) == ["granted"]
    first, alone = traces.some("POST /v1/batch", 2)
    assert about(first)["dibs.commands"] == 2
    waits = [one(name, "d", queue=True) for name in (b"b1", b"b2", b"b3")]
    assert asked(*waits) == ["queued"] * 3
    assert asked(*waits) == ["queued"] * 3
    later, again = traces.some("POST /v1/batch", 4)[2:]
    assert set(links(later)) == {CALLER, ids(alone)}
    assert links(again) == [], "they wait as before"
    shown = client.get(f"/v1/locks/{b64('b1')}").json()
    assert "trace" not in shown["holders"][0], "it stays in the service"


def test_a_stream_has_ended_for_a_trace_where_it_begins(
    traces: Traces, client: httpx2.Client
) -> None:
    with client.stream("GET", "/v1/stream"):
        assert about(traces.one("GET /v1/stream"))["http.response.status_code"] == 200


def test_a_failure_is_one(
    traces: Traces, client: httpx2.Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError(SECRET_NAME)

    monkeypatch.setattr(health_of(world), "check", fail)
    assert client.get("/readyz").status_code == 500
    span = traces.one("GET /readyz")
    assert (span.status.status_code, about(span)["error.type"]) == (StatusCode.ERROR, "500")
    assert SECRET_NAME not in traces.text


def test_where_nobody_has_set_it_up_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: no call of OpenTelemetry's after the start."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    world = World.over()
    try:
        assert not is_traced(world.server)
        called: list[str] = []

        def seen(frame: Any, event: str, _: object) -> None:
            if event == "call":
                called.append(frame.f_code.co_filename)

        client = world.client()
        world.do(lambda: sys.setprofile(seen))
        acquired(client, "x")
        assert client.post(f"/v1/locks/{b64('x')}", params={"ttl": 60}).status_code == 409
        world.do(lambda: sys.setprofile(None))
        assert [file for file in called if "server/api/locks" in file]
        assert not [file for file in called if "opentelemetry" in file or "tracing" in file]
    finally:
        world.close()


SET_UP = (
    "from opentelemetry import trace\n"
    "from opentelemetry.sdk.trace import TracerProvider\n"
    "trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))\n"
)


@pytest.mark.parametrize(
    ("missing", "before", "told"),
    [
        ("opentelemetry", "", ""),
        (
            "opentelemetry.instrumentation.asgi",
            SET_UP,
            "requests are not traced: opentelemetry.instrumentation.asgi is missing. Run: pip install",
        ),
    ],
)
def test_a_server_runs_where_it_is_not_installed(missing: str, before: str, told: str) -> None:
    code = (
        "import asyncio, sys\n"
        f"sys.modules[{missing!r}] = None\n"
        f"{before}"
        "from dibs.server.config import ServerConfig\n"
        "from dibs.server.main import Server\n"
        "from tests.server.inside import is_traced\n"
        "async def main():\n"
        "    server = Server(ServerConfig(listen='127.0.0.1:0', leases='memory://x', records='memory://y'))\n"
        "    await server.start()\n"
        "    assert not is_traced(server)\n"
        "    server.stop()\n"
        "    await server.run()\n"
        "    print('served')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "served\n"
    assert told in done.stderr
    assert bool(told) == bool(done.stderr)
