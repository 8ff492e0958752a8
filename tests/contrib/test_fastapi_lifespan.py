"""The store of an application, and what is checked when that starts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from typing import Annotated, Any
from uuid import uuid4

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import dibs.sync
from dibs import AcquireTimeout, Lease, Lock, connect, current_lease, override
from dibs.contrib.fastapi import Held, lifespan, problems
from tests.contrib.site import Site


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
    @site.app.get("/")
    async def hold(lease: Annotated[Lease, Depends(Held("a", wait=0))]) -> list[str]:
        return await site.held_now()

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
def test_what_was_the_default_store_before_is_it_again_after(last_first: bool) -> None:
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


def test_one_that_fails_to_start_leaves_the_default_store_as_it_was(site: Site) -> None:
    @asynccontextmanager
    async def broken(app: FastAPI) -> AsyncIterator[None]:
        raise ZeroDivisionError
        yield

    app = FastAPI(lifespan=lifespan(f"memory://{uuid4()}", then=broken))
    with site.client:
        with pytest.raises(ZeroDivisionError), TestClient(app):
            pass
        assert connect().url == site.other.url


def test_who_forgot_the_handlers_is_warned_at_the_start(site: Site) -> None:
    site.app.exception_handlers.pop(AcquireTimeout)

    @site.app.get("/")
    async def hold(lease: Annotated[Lease, Depends(Held("a", wait=0))]) -> None: ...

    with pytest.warns(UserWarning, match=r"Held\('a'\) is in use.*problems\(\)"), site.client:
        pass
    site.app.exception_handlers[TimeoutError] = problems()[AcquireTimeout]
    with site.client:
        pass


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


Order = Annotated[Lease, Depends(Held("order:{order_id}"))]


def test_contention_is_a_problem_with_retry_after(site: Site) -> None:
    site.app.exception_handlers.update(problems(disclose=True))

    @site.app.post("/orders/{order_id}/pay")
    async def pay(order_id: int, lease: Order) -> None:
        raise AssertionError("it is not called")

    with site.client as client, site.other.lock("order:42", ttl="20s", note="by hand") as lease:
        answer = client.post("/orders/42/pay")
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert 1 <= int(answer.headers["retry-after"]) <= 5, "a hold ends before its lease would"
    problem = answer.json()
    assert problem["type"] == "urn:dibs:problem:busy"
    assert problem["status"] == 409
    assert problem["title"]
    assert problem["instance"] == "/orders/42/pay"
    assert problem["key"] == "lock:order:42"
    assert 0 < problem["retry_after"] <= 5
    assert "order:42 is held by" in problem["detail"]
    [holder] = problem["holders"]
    assert (holder["owner"], holder["note"], holder["units"]) == (lease.owner, "by hand", 1)
    assert "lease" not in holder
    assert "id" not in holder


def test_strangers_are_not_told_who_holds_it(site: Site) -> None:
    @site.app.post("/orders/{order_id}/pay")
    async def pay(order_id: int, lease: Order) -> None: ...

    with site.client as client, site.other.lock("order:42", note="secret") as lease:
        answer = client.post("/orders/42/pay")
    assert answer.status_code == 409
    problem = answer.json()
    assert problem.keys() == {"type", "title", "status", "detail", "instance", "retry_after"}
    assert problem["detail"] == "The resource is in use."
    assert lease.owner not in answer.text
    assert "secret" not in answer.text
    assert answer.headers["retry-after"]


def test_another_status_for_all_and_for_one(site: Site) -> None:
    site.app.exception_handlers.update(problems(status=423))

    @site.app.get("/all")
    async def of_all(lease: Annotated[Lease, Depends(Held("a", wait=0))]) -> None: ...

    @site.app.get("/one")
    async def of_one(lease: Annotated[Lease, Depends(Held("a", wait=0, status=429))]) -> None: ...

    with site.client as client, site.other.lock("a"):
        answers = client.get("/all"), client.get("/one")
    assert [answer.status_code for answer in answers] == [423, 429]
    assert [answer.json()["status"] for answer in answers] == [423, 429]


def test_a_name_that_is_too_long_is_the_client_s_fault(site: Site) -> None:
    @site.app.get("/named/{what}")
    async def named(what: str, lease: Annotated[Lease, Depends(Held("named:{what}"))]) -> None: ...

    with site.client as client:
        answer = client.get(f"/named/{'x' * 600}")
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:dibs:problem:name")
    assert "retry-after" not in answer.headers


@pytest.mark.parametrize("status", [99, 200, 600, "409", True])
def test_a_status_that_tells_no_failure_is_refused(status: Any) -> None:
    with pytest.raises(ValueError, match="from 400 to 599"):
        problems(status=status)
    with pytest.raises(ValueError, match="from 400 to 599"):
        Held("a", status=status)


def test_a_store_that_is_away_is_a_problem_of_its_own(tmp_path: Any) -> None:
    from tests.servers.ports import free_port

    app = FastAPI(
        lifespan=lifespan(f"redis://127.0.0.1:{free_port()}/0"), exception_handlers=problems()
    )

    @app.get("/")
    async def handler(lease: Annotated[Lease, Depends(Held("a", wait=0))]) -> None: ...

    with TestClient(app) as client:  # an outage keeps no application from starting
        answer = client.get("/")
    assert answer.status_code == 503
    assert "127.0.0.1" not in answer.text
    assert answer.json()["type"] == "urn:dibs:problem:unavailable"
    assert int(answer.headers["retry-after"]) >= 1


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
    from starlette.testclient import WebSocketDenialResponse

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
