"""A store is connected in the lifespan of a web application, and what is held is given back at its end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import dibs
import dibs.sync

ORDER, REPORT = dibs.Lock("order"), dibs.Lock("report", client="reports")
"""Declared with the module, as programs do: one store comes with the lifespan, the other by settings."""


async def order(request: Request) -> JSONResponse:
    async with ORDER as lease:
        return JSONResponse({"token": lease.token})


async def report(request: Request) -> JSONResponse:
    async with REPORT as lease:
        return JSONResponse({"token": lease.token})


async def keep(request: Request) -> JSONResponse:
    request.app.state.lease = await dibs.Lock("kept").acquire()
    return JSONResponse({})


def blocking(request: Request) -> JSONResponse:
    with dibs.sync.Lock("order") as lease:
        return JSONResponse({"token": lease.token})


type Make = Callable[..., Starlette]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", f"sqlite:///{tmp_path}/reports.db")

    def application() -> Starlette:
        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            async with dibs.connect(f"sqlite:///{tmp_path}/orders.db", default=True):
                yield

        routes = [Route(f"/{each.__name__}", each) for each in (order, report, keep, blocking)]
        return Starlette(routes=routes, lifespan=lifespan)

    return application


def statuses(path: Path) -> dict[str, Any]:
    with dibs.sync.connect(f"sqlite:///{path}") as client:
        return {status.name.decode(): status for status in client.list()}


def test_closing_gives_back_what_is_held(make: Make, tmp_path: Path) -> None:
    app = make()
    with TestClient(app) as http:
        assert http.get("/order").json()["token"] < http.get("/order").json()["token"]
        assert http.get("/blocking").json()["token"] < http.get("/order").json()["token"]
        assert http.get("/report").status_code == 200
        assert http.get("/keep").status_code == 200
        assert statuses(tmp_path / "orders.db")["kept"].holders
    assert app.state.lease.reason == "closed"
    assert not any(status.holders for status in statuses(tmp_path / "orders.db").values())
    assert (tmp_path / "reports.db").exists()


def test_one_lifespan_after_another_each_in_a_loop_of_its_own(make: Make) -> None:
    app, tokens = make(), []
    for _ in range(3):
        with TestClient(app) as http:
            tokens += [http.get(path).json()["token"] for path in ("/order", "/report")]
    assert tokens[0::2] == sorted(set(tokens[0::2]))
    assert tokens[1::2] == sorted(set(tokens[1::2]))


def test_two_applications_at_once_share_a_named_store(make: Make) -> None:
    one, two = make(), make()
    with TestClient(one) as first:
        with TestClient(two) as second:
            assert first.get("/report").json()["token"] < second.get("/report").json()["token"]
        assert first.get("/report").status_code == 200, "the other one has not taken it along"


def test_a_test_puts_other_stores_in_their_stead(make: Make, tmp_path: Path) -> None:
    double = dibs.connect("memory://double")
    with (
        dibs.override(double),
        dibs.override(double, name="reports"),
        TestClient(make()) as http,
    ):
        token = http.get("/report").json()["token"]
        assert http.get("/order").status_code == 200
    found = dibs.sync.connect("memory://double").status("report")
    assert found.last_token == token
    assert not statuses(tmp_path / "orders.db")


async def test_in_the_tests_own_loop(make: Make) -> None:
    app = make()
    transport = httpx2.ASGITransport(app=app)
    async with app.router.lifespan_context(app):
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as http:
            answers = await asyncio.gather(*(http.get("/order") for _ in range(20)))
            assert (await http.get("/keep")).status_code == 200
    assert len({answer.json()["token"] for answer in answers}) == 20
    assert app.state.lease.reason == "closed"
