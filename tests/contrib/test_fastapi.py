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
from starlette.testclient import WebSocketDenialResponse

import dibs.sync
from dibs import AcquireTimeout, Lease, LeaseLost, Lock, connect
from dibs.contrib.fastapi import Held, lifespan, openapi_responses, problems


class Site:
    """An application over a store, and another client of the store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.other = dibs.sync.connect(url)
        self.app = FastAPI(lifespan=lifespan(url), exception_handlers=problems())
        self.started, self.go_on = threading.Event(), threading.Event()
        self.ended: list[str] = []

    @property
    def client(self) -> TestClient:
        return TestClient(self.app, raise_server_exceptions=False)

    def hold(self, path: str, held: Held) -> None:
        """Add a route that holds a lease and returns the names that are held."""

        @self.app.get(path)
        async def handler(lease: Annotated[Lease, Depends(held)]) -> list[str]:
            return await self.held()

    async def held(self) -> list[str]:
        return [status.name.decode() async for status in connect(self.url).list()]

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
    assert list(site.other.list()) == [], "nothing is left behind"
    site.other.close()


def test_the_lease_is_held_while_the_handler_runs(site: Site) -> None:
    site.hold("/orders/{order_id}/{path:path}", Held("order:{order_id}:{path}", wait=0))
    site.hold("/gpu", Held("g", capacity=3, units=2, wait=0))
    with site.client as client:
        for _ in range(2):
            assert client.get("/orders/42/pay").json() == ["order:42:pay"]
        escaped = client.get("/orders/1/a/b:c%25").json()
        assert escaped == ["order:1:a%2Fb%3Ac%25"], "values make no name of another resource"
        assert client.get("/gpu").json() == ["g"]
        with site.other.semaphore("g", 3).acquire(units=2):
            assert client.get("/gpu").status_code == 409


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
        for spelling in ("7", "007"):
            found = client.get(f"/orders/{spelling}?on=2026-11-22").json()
            assert found == "lock:order:7:2026-11-22"
        wrong, missing = client.get("/orders/x?on=2026-11-22"), client.get("/orders/7")
    assert (wrong.status_code, missing.status_code) == (422, 422)
    assert missing.json()["detail"][0]["loc"] == ["query", "on"]


def test_routers_dependencies_and_parameters_of_other_dependencies(site: Site) -> None:
    def user(user_id: int) -> int:
        return user_id

    router = APIRouter(prefix="/{tenant}", dependencies=[Depends(Held("tenant:{tenant}"))])
    held = Depends(Held("u:{user_id}"))

    @router.get("/x")
    async def handler(user: Annotated[int, Depends(user)], lease: Annotated[Lease, held]) -> Any:
        return await site.held()

    again = [Depends(Held("user:{user_id}"))]
    site.app.include_router(router, prefix="/api", dependencies=again)
    with site.client as client:
        found = client.get("/api/acme/x?user_id=07").json()
    assert found == ["tenant:acme", "u:7", "user:7"]


def test_wrong_options_are_errors_where_they_are_written(site: Site) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"wiat": 0}, TypeError, "wiat"),
        ({"ttl": "soon"}, ValueError, "ttl is 'soon'"),
        ({"capacity": 2, "units": 3}, ValueError, "units is 3"),
        ({"status": 200}, ValueError, "from 400 to 599"),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message):
            Held("a", **options)
    with pytest.raises(ValueError, match="from 400 to 599"):
        problems(status=99)
    site.hold("/orders/{order_id}", Held("o:{oder_id}"))
    unknown = r"names 'oder_id', and the route .*/orders/\{order_id\}"
    with pytest.raises(ValueError, match=unknown), site.client:  # it does not start
        pass


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
    assert (answer.status_code, answer.json()["reason"]) == (500, "revoked")


def test_a_plain_handler_in_the_thread_pool_is_not_interrupted(site: Site) -> None:
    @site.app.get("/")
    def work(lease: Annotated[Lease, Depends(Held("a"))]) -> None:
        lease.ensure(needs="1s")
        site.started.set()
        site.go_on.wait(20)
        try:
            lease.ensure()
        except LeaseLost as error:
            site.ended.append(error.reason)

    site.lose()
    with site.client as client:
        assert client.get("/").status_code == 500, "the answer waits for no thread"
        site.go_on.set()
    assert site.ended == ["revoked"]


def test_a_stream_is_covered_unless_the_scope_is_the_handler(site: Site) -> None:
    async def pieces() -> AsyncIterator[str]:
        yield ",".join(await site.held())

    @site.app.get("/whole")
    async def whole(
        lease: Annotated[Lease, Depends(Held("a"))], later: BackgroundTasks
    ) -> StreamingResponse:
        async def note() -> None:
            site.ended.extend(await site.held())

        later.add_task(note)
        return StreamingResponse(pieces(), background=later)

    @site.app.get("/handler")
    async def handler(
        lease: Annotated[Lease, Depends(Held("a"), scope="function")],
    ) -> StreamingResponse:
        return StreamingResponse(pieces())

    with site.client as client:
        assert client.get("/whole").text == "a"
        assert site.ended == ["a"], "and so are background tasks"
        assert client.get("/handler").text == ""


def test_a_lease_that_is_lost_amid_a_stream_breaks_it_off(site: Site) -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "a"
        site.started.set()
        try:
            await asyncio.sleep(60)
        finally:
            site.ended.append("ended")

    @site.app.get("/")
    async def stream(lease: Annotated[Lease, Depends(Held("a"))]) -> StreamingResponse:
        return StreamingResponse(pieces())

    site.lose()
    broken = pytest.raises(RuntimeError, match="response already started")
    with TestClient(site.app) as client, broken as info:
        client.get("/")
    assert isinstance(info.value.__cause__, LeaseLost)
    assert site.ended == ["ended"]


def test_a_websocket_is_refused_with_the_same_answer(site: Site) -> None:
    held = Depends(Held("room:{room}", wait=0))

    @site.app.websocket("/rooms/{room}")
    async def join(socket: WebSocket, room: str, lease: Annotated[Lease, held]) -> None:
        await socket.accept()
        await socket.send_text(",".join(await site.held()))
        await socket.close()

    with site.client as client:
        with client.websocket_connect("/rooms/1") as socket:
            assert socket.receive_text() == "room:1"
        refused = pytest.raises(WebSocketDenialResponse)
        with site.other.lock("room:1"), refused as info, client.websocket_connect("/rooms/1"):
            pass
    assert info.value.status_code == 409


def test_another_status_and_the_holders(site: Site) -> None:
    """`tests/contrib/test_web.py` has the usual answers."""
    site.app.exception_handlers.update(problems(status=423, disclose=True))
    site.hold("/all", Held("order:42"))
    site.hold("/one", Held("order:42", status=429))
    with site.client as client, site.other.lock("order:42", note="by hand") as lease:
        of_all, answer = client.get("/all"), client.get("/one")
    assert (of_all.status_code, answer.status_code) == (423, 429)
    assert 1 <= int(answer.headers["retry-after"]) <= 5, "a hold ends before its lease would"
    problem = answer.json()
    assert problem["key"] == "lock:order:42"
    assert "order:42 is held by" in problem["detail"]
    [holder] = problem["holders"]
    assert (holder["owner"], holder["note"], holder["units"]) == (lease.owner, "by hand", 1)
    assert not {"lease", "id"} & holder.keys()


def test_openapi_describes_contention_and_outages(site: Site) -> None:
    own_words: dict[int | str, dict[str, Any]] = {409: {"description": "Try later"}}
    router = APIRouter(prefix="/in")

    @router.get("/router/{order_id}", dependencies=[Depends(Held("o:{order_id}"))])
    @site.app.get("/own", dependencies=[Depends(Held("x", status=423))])
    @site.app.get("/said", dependencies=[Depends(Held("x"))], responses=own_words)
    @site.app.get("/free", responses=openapi_responses(status=429))
    @site.app.get("/nothing")
    async def handler() -> None: ...

    site.app.include_router(router)
    with site.client as client:
        paths = client.get("/openapi.json").raise_for_status().json()["paths"]
    answers = {path: found["get"]["responses"] for path, found in paths.items()}
    assert {path: set(found) - {"200", "422"} for path, found in answers.items()} == {
        "/in/router/{order_id}": {"409", "503"},
        "/own": {"423", "503"},
        "/said": {"409", "503"},
        "/free": {"429", "503"},
        "/nothing": set(),
    }
    assert answers["/said"]["409"]["description"] == "Try later"
    busy = answers["/own"]["423"]
    assert "retry_after" in busy["content"]["application/problem+json"]["schema"]["properties"]
    assert "Retry-After" in busy["headers"]


def test_a_lifespan_of_ones_own_runs_inside(site: Site) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def mine(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        async with Lock("start-up"):  # the store is the default already
            seen.extend(await site.held())
        yield {"mine": "here"}
        async with Lock("shut-down"):
            seen.extend(await site.held())

    site.app = FastAPI(lifespan=lifespan(site.url, then=mine))

    @site.app.get("/")
    async def show(request: Request) -> list[str]:
        return [request.state.mine, connect().url]

    with site.client as client:
        assert client.get("/").json() == ["here", site.url]
    assert seen == ["start-up", "shut-down"]


def test_two_applications_each_have_their_store(site: Site) -> None:
    """One that fails to start leaves the default store as it was."""
    second = Site(f"memory://{uuid4()}")
    second.app = FastAPI(
        lifespan=lifespan(second.url, default=False), exception_handlers=problems()
    )

    @asynccontextmanager
    async def broken(app: FastAPI) -> AsyncIterator[None]:
        raise ZeroDivisionError
        yield

    for each in (site, second):
        each.hold("/", Held("a", wait=0))
    fails = TestClient(FastAPI(lifespan=lifespan(second.url, then=broken)))
    with site.client as one, second.client as two:
        with pytest.raises(ZeroDivisionError), fails:
            pass
        with site.other.lock("a"):
            assert one.get("/").status_code == 409
            assert two.get("/").json() == ["a"]
    second.other.close()


def test_a_warning_at_the_start_without_the_handlers(site: Site) -> None:
    site.app.exception_handlers.pop(AcquireTimeout)
    site.hold("/", Held("a", wait=0))
    with pytest.warns(UserWarning, match=r"Held\('a'\) is in use.*problems\(\)"), site.client:
        pass
    site.app.exception_handlers[TimeoutError] = problems()[AcquireTimeout]
    with site.client:
        pass
