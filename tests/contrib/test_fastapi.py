"""FastAPI: the store of an application, the dependency that holds a lease, and the answers to contention."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import date
from typing import Annotated, Any
from uuid import uuid4

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Query, Request, WebSocket
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import WebSocketDenialResponse

import dibs.sync
from dibs import AcquireTimeout, Lease, LeaseLost, Lock, connect, current_lease, override
from dibs.contrib.fastapi import Held, lifespan, openapi_responses, problems
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until


class Site:
    """An application over a store, and another client of the store."""

    def __init__(self, url: str) -> None:
        self.other = dibs.sync.connect(url)
        self.app = FastAPI(lifespan=lifespan(url), exception_handlers=problems())
        self.started, self.go_on = threading.Event(), threading.Event()
        self.ended: list[str] = []

    @property
    def client(self) -> TestClient:
        return TestClient(self.app, raise_server_exceptions=False)

    def held(self) -> list[str]:
        return [status.name.decode() for status in self.other.list()]

    def hold(self, path: str, held: Held) -> None:
        """Add a route that holds a lease and returns the names that are held."""

        @self.app.get(path)
        async def handler(lease: Annotated[Lease, Depends(held)]) -> list[str]:
            return await self.held_now()

    async def held_now(self) -> list[str]:
        return [status.name.decode() async for status in connect(self.other.url).list()]

    def lose(self) -> None:
        """Revoke the lease of the handler as soon as it runs."""

        def work() -> None:
            assert self.started.wait(20)
            for status in self.other.list():
                self.other.revoke(status, reason="a test", now=True)

        threading.Thread(target=work).start()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site(f"memory://{uuid4()}")
    yield site
    assert site.held() == [], "nothing is left behind"
    site.other.close()


# ---- the dependency -------------------------------------------------------------------------------


Order = Annotated[Lease, Depends(Held("order:{order_id}", wait=0))]


def test_the_lease_is_held_while_the_handler_runs(site: Site) -> None:
    site.hold("/orders/{order_id}/{path:path}", Held("order:{order_id}:{path}", wait=0))
    with site.client as client:
        for _ in range(2):
            assert client.get("/orders/42/pay").json() == ["order:42:pay"]
        escaped = client.get("/orders/1/a/b:c%25").json()
        assert escaped == ["order:1:a%2Fb%3Ac%25"], (
            "values cannot make the name of another resource"
        )
        long = client.get(f"/orders/1/{'x' * 600}")
    assert (long.status_code, long.json()["type"]) == (400, "urn:dibs:problem:name")


def test_it_waits(site: Site) -> None:
    site.hold("/", Held("a", wait=20))
    lease = site.other.lock("a").acquire()

    def release() -> None:
        wait_until(lambda: site.other.lock("a").status().waiters, "a waiter in line")
        lease.release()

    thread = threading.Thread(target=release)
    thread.start()
    with site.client as client:
        assert client.get("/").json() == ["a"]
    thread.join(20)


def test_values_are_read_as_the_handler_declares_them(site: Site) -> None:
    """Two spellings of one order are one lock."""

    @site.app.get("/orders/{order_id}")
    async def show(
        order_id: int,
        day: Annotated[date, Query(alias="on")],
        lease: Annotated[Lease, Depends(Held("order:{order_id}:{day}", wait=0))],
    ) -> str:
        return lease.key.decode()

    with site.client as client:
        keys = {
            client.get("/orders/7?on=2026-11-22").json(),
            client.get("/orders/007?on=2026-11-22").json(),
        }
        wrong, missing = client.get("/orders/x?on=2026-11-22"), client.get("/orders/7")
    assert keys == {"lock:order:7:2026-11-22"}
    assert (wrong.status_code, missing.status_code) == (422, 422)
    assert missing.json()["detail"][0]["loc"] == ["query", "on"]


def test_routers_dependencies_and_parameters_of_other_dependencies(site: Site) -> None:
    def user(user_id: int) -> int:
        return user_id

    router = APIRouter(prefix="/{tenant}", dependencies=[Depends(Held("tenant:{tenant}"))])

    @router.get("/x")
    async def handler(
        user: Annotated[int, Depends(user)], lease: Annotated[Lease, Depends(Held("u:{user_id}"))]
    ) -> list[str]:
        return await site.held_now()

    again = [Depends(Held("user:{user_id}"))]
    site.app.include_router(router, prefix="/api", dependencies=again)
    with site.client as client:
        held = client.get("/api/acme/x?user_id=07").json()
    assert held == ["tenant:acme", "u:7", "user:7"]


def test_wrong_options_are_errors_where_they_are_written() -> None:
    for options, error, message in (
        ({"wiat": 0}, TypeError, "wiat"),
        ({"ttl": "soon"}, ValueError, "ttl is 'soon'"),
        ({"capacity": 2, "units": 3}, ValueError, "units is 3"),
        ({"status": 200}, ValueError, "from 400 to 599"),
        ({"status": "409"}, ValueError, "from 400 to 599"),
    ):
        wrong: dict[str, Any] = options
        with pytest.raises(error, match=message):
            Held("a", **wrong)
    for status in (99, True):
        with pytest.raises(ValueError, match="from 400 to 599"):
            problems(status=status)


def test_a_semaphore(site: Site) -> None:
    site.hold("/gpu", Held("g", capacity=3, units=2, wait=0))
    with site.client as client:
        assert client.get("/gpu").json() == ["g"]
        with site.other.semaphore("g", 3).acquire(units=2):
            assert client.get("/gpu").status_code == 409


@pytest.mark.parametrize("swallows", [False, True])
def test_a_lost_lease_cancels_the_handler(site: Site, swallows: bool) -> None:
    @site.app.get("/")
    async def work(lease: Annotated[Lease, Depends(Held("a"), scope="function")]) -> None:
        site.started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            site.ended.append("cancelled")
            if not swallows:
                raise

    site.lose()
    with site.client as client:
        answer = client.get("/")
    assert site.ended == ["cancelled"]
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["type"], answer.json()["reason"]) == ("urn:dibs:problem:lost", "revoked")
    assert "retry-after" not in answer.headers


def test_a_plain_handler_in_the_thread_pool(site: Site) -> None:
    """It is not interrupted; what is a plain call of the lease works there."""

    @site.app.get("/{name}")
    def work(name: str, lease: Annotated[Lease, Depends(Held("{name}"))]) -> int:
        lease.ensure(needs="1s")
        if name == "lost":
            site.started.set()
            site.go_on.wait(20)
            try:
                lease.ensure()
            except LeaseLost as error:
                site.ended.append(error.reason)
        return lease.token

    site.lose()
    with site.client as client:
        assert client.get("/fine").status_code == 200
        assert client.get("/lost").status_code == 500, "the answer waits for no thread"
        site.go_on.set()
    assert site.ended == ["revoked"]


def test_a_stream_is_covered_unless_the_scope_is_the_handler(site: Site) -> None:
    async def pieces() -> AsyncIterator[str]:
        yield ",".join(await site.held_now())

    @site.app.get("/whole")
    async def whole(lease: Annotated[Lease, Depends(Held("a"))]) -> StreamingResponse:
        return StreamingResponse(pieces())

    @site.app.get("/handler")
    async def handler(
        lease: Annotated[Lease, Depends(Held("a"), scope="function")],
    ) -> StreamingResponse:
        return StreamingResponse(pieces())

    @site.app.get("/later")
    async def later(later: BackgroundTasks, lease: Annotated[Lease, Depends(Held("a"))]) -> None:
        async def note() -> None:
            site.ended.extend(await site.held_now())

        later.add_task(note)

    with site.client as client:
        assert client.get("/later").status_code == 200
        assert site.ended == ["a"], "and so are background tasks"
        assert client.get("/whole").text == "a"
        assert client.get("/handler").text == ""


def test_a_lease_that_is_lost_amid_a_stream_breaks_it_off(site: Site) -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "a"
        site.started.set()
        try:
            await asyncio.sleep(60)
        finally:
            site.ended.append("ended")
        yield "b"

    @site.app.get("/")
    async def stream(lease: Annotated[Lease, Depends(Held("a"))]) -> StreamingResponse:
        return StreamingResponse(pieces())

    site.lose()
    with (
        TestClient(site.app) as client,
        pytest.raises(RuntimeError, match="response already started") as info,
    ):
        client.get("/")
    assert isinstance(info.value.__cause__, LeaseLost)
    assert site.ended == ["ended"]


def test_an_error_of_the_handler_is_its_own(site: Site) -> None:
    @site.app.get("/")
    async def fail(lease: Annotated[Lease, Depends(Held("a"))]) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"), TestClient(site.app) as client:
        client.get("/")


@pytest.mark.parametrize("place", ["application", "router"])
def test_an_unknown_field_fails_the_start(site: Site, place: str) -> None:
    router: Any = site.app if place == "application" else APIRouter(prefix="/v1")

    @router.get("/orders/{order_id}")
    async def show(order_id: int, lease: Annotated[Lease, Depends(Held("o:{oder_id}"))]) -> None:
        raise AssertionError("it is not called")

    if place == "router":
        site.app.include_router(router)
    with (
        pytest.raises(ValueError, match=r"names 'oder_id', and the route .*/orders/\{order_id\}"),
        site.client,
    ):
        pass
    assert site.client.get("/orders/7").status_code == (500 if place == "application" else 404)


def test_wraps_under_a_route_is_answered_alike(site: Site) -> None:
    @site.app.get("/plain/{day}")
    @Lock.wraps("report:{day}", wait=0)
    def plain(day: date) -> str:
        return current_lease().key.decode()

    @site.app.get("/async/{day}")
    @Lock.wraps("report:{day}", wait=0)
    async def task(day: date) -> str:
        return current_lease().key.decode()

    with site.client as client:
        for kind in ("plain", "async"):
            assert client.get(f"/{kind}/2026-01-02").json() == "lock:report:2026-01-02"
            with site.other.lock("report:2026-01-02"):
                assert client.get(f"/{kind}/2026-01-02").status_code == 409


def test_a_websocket_is_refused_with_the_same_answer(site: Site) -> None:
    @site.app.websocket("/rooms/{room}")
    async def join(
        socket: WebSocket, room: str, lease: Annotated[Lease, Depends(Held("room:{room}", wait=0))]
    ) -> None:
        await socket.accept()
        await socket.send_text(",".join(await site.held_now()))
        await socket.close()

    with site.client as client:
        with client.websocket_connect("/rooms/1") as socket:
            assert socket.receive_text() == "room:1"
        with (
            site.other.lock("room:1"),
            pytest.raises(WebSocketDenialResponse) as refused,
            client.websocket_connect("/rooms/1"),
        ):
            pass
    assert refused.value.status_code == 409


# ---- the answers ----------------------------------------------------------------------------------


def test_contention_is_a_problem_with_retry_after(site: Site) -> None:
    @site.app.post("/orders/{order_id}/pay")
    async def pay(
        order_id: int, lease: Annotated[Lease, Depends(Held("order:{order_id}"))]
    ) -> None:
        raise AssertionError("it is not called")

    with site.client as client, site.other.lock("order:42", ttl="20s", note="by hand") as lease:
        discreet = client.post("/orders/42/pay")
        site.app.exception_handlers.update(problems(disclose=True))
        site.app.middleware_stack = None
        open_ = client.post("/orders/42/pay")
    for answer in (discreet, open_):
        assert answer.status_code == answer.json()["status"] == 409
        assert answer.headers["content-type"] == "application/problem+json"
        assert 1 <= int(answer.headers["retry-after"]) <= 5, "a hold ends before its lease would"
    problem = discreet.json()
    assert problem.keys() == {"type", "title", "status", "detail", "instance", "retry_after"}
    assert problem["type"] == "urn:dibs:problem:busy"
    assert problem["instance"] == "/orders/42/pay"
    for secret in (lease.owner, "by hand"):
        assert secret not in discreet.text
    problem = open_.json()
    assert problem["key"] == "lock:order:42"
    assert "order:42 is held by" in problem["detail"]
    [holder] = problem["holders"]
    assert (holder["owner"], holder["note"], holder["units"]) == (lease.owner, "by hand", 1)
    assert not {"lease", "id"} & holder.keys()


def test_another_status_for_all_and_for_one(site: Site) -> None:
    site.app.exception_handlers.update(problems(status=423))
    site.hold("/all", Held("a", wait=0))
    site.hold("/one", Held("a", wait=0, status=429))
    with site.client as client, site.other.lock("a"):
        answers = client.get("/all"), client.get("/one")
    assert [answer.status_code for answer in answers] == [423, 429]
    assert [answer.json()["status"] for answer in answers] == [423, 429]


def test_a_store_that_is_away_is_a_problem_of_its_own() -> None:
    site = Site(f"redis://127.0.0.1:{free_port()}/0")
    site.hold("/", Held("a", wait=0))
    with site.client as client:  # an outage keeps no application from starting
        answer = client.get("/")
    site.other.close()
    assert answer.status_code == 503
    assert "127.0.0.1" not in answer.text
    assert answer.json()["type"] == "urn:dibs:problem:unavailable"
    assert int(answer.headers["retry-after"]) >= 1


def test_starlette_has_the_lifespan_and_the_problems_too(site: Site) -> None:
    async def hold(request: Request) -> PlainTextResponse:
        async with Lock("order:{order_id}".format(**request.path_params), wait=0):
            return PlainTextResponse(",".join(await site.held_now()))

    app = Starlette(
        routes=[Route("/{order_id:int}", hold)],
        lifespan=lifespan(site.other.url),
        exception_handlers=problems(disclose=True),
    )
    with TestClient(app) as client:
        assert client.get("/7").text == "order:7"
        with site.other.lock("order:7"):
            assert client.get("/7").json()["key"] == "lock:order:7"


def test_openapi_describes_contention_and_outages(site: Site) -> None:
    router = APIRouter(prefix="/in")

    @router.get("/router/{order_id}", dependencies=[Depends(Held("o:{order_id}"))])
    async def in_router(order_id: int) -> None: ...

    @site.app.get("/own", dependencies=[Depends(Held("x", status=423))])
    async def own() -> None: ...

    own_words: dict[int | str, dict[str, Any]] = {409: {"description": "Try later"}}

    @site.app.get("/said", dependencies=[Depends(Held("x"))], responses=own_words)
    async def said() -> None: ...

    @site.app.get("/free", responses=openapi_responses(status=429))
    async def free() -> None: ...

    @site.app.get("/nothing")
    async def nothing() -> None: ...

    site.app.include_router(router)
    with site.client as client:
        paths = client.get("/openapi.json").raise_for_status().json()["paths"]
    codes = {path: set(found["get"]["responses"]) - {"200", "422"} for path, found in paths.items()}
    assert codes == {
        "/in/router/{order_id}": {"409", "503"},
        "/own": {"423", "503"},
        "/said": {"409", "503"},
        "/free": {"429", "503"},
        "/nothing": set(),
    }
    assert paths["/said"]["get"]["responses"]["409"]["description"] == "Try later"
    busy = paths["/own"]["get"]["responses"]["423"]
    assert "retry_after" in busy["content"]["application/problem+json"]["schema"]["properties"]
    assert "Retry-After" in busy["headers"]


# ---- the store of an application ------------------------------------------------------------------


def test_a_lifespan_of_ones_own_runs_inside(site: Site) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def mine(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        async with Lock("start-up"):  # the store is the default already
            seen.extend(await site.held_now())
        yield {"mine": "here"}
        async with Lock("shut-down"):
            seen.extend(await site.held_now())

    site.app = FastAPI(lifespan=lifespan(site.other.url, then=mine), exception_handlers=problems())

    @site.app.get("/")
    async def show(request: Request) -> list[str]:
        return [request.state.mine, connect().url]

    with site.client as client:
        assert client.get("/").json() == ["here", site.other.url]
    assert seen == ["start-up", "shut-down"]


def test_a_test_may_override_the_store(site: Site) -> None:
    site.hold("/", Held("a", wait=0))
    with dibs.sync.connect(f"memory://{uuid4()}") as another, site.client as client:
        assert client.get("/").json() == ["a"]
        with override(another):
            assert client.get("/").json() == []


def test_two_applications_each_have_their_store() -> None:
    urls = [f"memory://{uuid4()}" for _ in range(2)]
    clients = []
    for url in urls:
        app = FastAPI(lifespan=lifespan(url, default=False), exception_handlers=problems())

        @app.get("/")
        async def hold(
            request: Request, lease: Annotated[Lease, Depends(Held("a", wait=0))]
        ) -> str:
            return str(request.state.dibs.url)

        clients.append(TestClient(app))
    with clients[0] as first, clients[1] as second, dibs.sync.connect(urls[1]).lock("b"):
        with dibs.sync.connect(urls[0]).lock("a"):
            assert first.get("/").status_code == 409
        assert second.get("/").json() == urls[1]


@pytest.mark.parametrize("last_first", [True, False])
def test_the_default_store_of_before_comes_back(last_first: bool) -> None:
    dibs.sync.set_default("memory://before")
    try:
        apps = [FastAPI(lifespan=lifespan(f"memory://{n}")) for n in (1, 2)]
        first, second = (TestClient(app) for app in apps)
        first.__enter__()
        second.__enter__()
        assert connect().url == "memory://2"
        one, other = (second, first) if last_first else (first, second)
        one.__exit__(None, None, None)
        assert connect().url == ("memory://1" if last_first else "memory://2")
        other.__exit__(None, None, None)
        assert connect().url == "memory://before"
    finally:
        dibs.sync.set_default(None)


def test_an_application_that_fails_to_start_leaves_the_default_store_as_it_was(site: Site) -> None:
    @asynccontextmanager
    async def broken(app: FastAPI) -> AsyncIterator[None]:
        raise ZeroDivisionError
        yield

    app = FastAPI(lifespan=lifespan(f"memory://{uuid4()}", then=broken))
    with site.client:
        with pytest.raises(ZeroDivisionError), TestClient(app):
            pass
        assert connect().url == site.other.url


def test_a_warning_at_the_start_without_the_handlers(site: Site) -> None:
    site.app.exception_handlers.pop(AcquireTimeout)
    site.hold("/", Held("a", wait=0))
    with pytest.warns(UserWarning, match=r"Held\('a'\) is in use.*problems\(\)"), site.client:
        pass
    site.app.exception_handlers[TimeoutError] = problems()[AcquireTimeout]
    with site.client:
        pass
