"""The store of an application, and what is checked when that starts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import uuid4

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import dibs.sync
from dibs import AcquireTimeout, Lease, Lock, connect, override
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
