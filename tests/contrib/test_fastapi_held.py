"""The dependency that holds a lease while a request is served."""

import threading
from collections.abc import AsyncIterator
from datetime import date
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, Query
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

from dibs import Lease, LeaseLost
from dibs.contrib.fastapi import Held, openapi_responses, problems
from tests.contrib.site import Site
from tests.servers.waiting import wait_until

Order = Annotated[Lease, Depends(Held("order:{order_id}", wait=0))]


def test_the_lease_is_held_while_the_handler_runs(site: Site) -> None:
    @site.app.post("/orders/{order_id}/pay")
    async def pay(order_id: int, lease: Order) -> dict[str, Any]:
        return {"token": lease.token, "held": await site.held_now()}

    with site.client as client:
        first = client.post("/orders/42/pay").json()
        second = client.post("/orders/42/pay").json()
    assert first["held"] == ["order:42"]
    assert second["token"] > first["token"]


def test_it_waits_as_long_as_it_is_told_to(site: Site) -> None:
    @site.app.get("/")
    async def wait(lease: Annotated[Lease, Depends(Held("a", wait=20))]) -> int:
        return lease.token

    lease = site.other.lock("a").acquire()

    def let_go() -> None:
        wait_until(lambda: site.other.lock("a").status().waiters, "somebody in line")
        lease.release()

    thread = threading.Thread(target=let_go)
    thread.start()
    with site.client as client:
        assert client.get("/").json() > lease.token
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


def test_values_cannot_make_the_name_of_another_resource(site: Site) -> None:
    @site.app.get("/files/{path:path}")
    async def show(lease: Annotated[Lease, Depends(Held("file:{path}"))]) -> str:
        return lease.key.decode()

    with site.client as client:
        assert client.get("/files/a/b:c%25").json() == "lock:file:a%2Fb%3Ac%25"


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


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"wiat": 0}, TypeError, "wiat"),
        ({"timeout": 3}, TypeError, "did you mean wait="),
        ({"ttl": "soon"}, ValueError, "ttl is 'soon'"),
        ({"capacity": 0}, ValueError, "capacity is 0"),
        ({"capacity": 2, "units": 3}, ValueError, "units is 3"),
        ({"units": 2}, ValueError, "units is 2"),
    ],
)
def test_wrong_options_are_told_where_they_are_written(
    options: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        Held("a", **options)


def test_a_semaphore(site: Site) -> None:
    site.app.exception_handlers.update(problems(disclose=True))

    @site.app.get("/gpu")
    async def gpu(lease: Annotated[Lease, Depends(Held("g", capacity=3, units=2, wait=0))]) -> Any:
        return lease.slots

    with site.client as client:
        assert client.get("/gpu").json() == [0, 1]
        with site.other.semaphore("g", 3).acquire(units=2):
            answer = client.get("/gpu")
    assert answer.status_code == 409
    assert answer.json()["holders"][0]["slots"] == [0, 1]


def test_a_lost_lease_cancels_the_handler(site: Site) -> None:
    @site.app.get("/{name}")
    async def work(name: str, lease: Annotated[Lease, Depends(Held("{name}"))]) -> None:
        import asyncio

        site.started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            site.ended.append("cancelled")
            raise

    site.lose()
    with site.client as client:
        answer = client.get("/a")
    assert site.ended == ["cancelled"]
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:dibs:problem:lost"
    assert answer.json()["reason"] == "revoked"
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


def test_a_stream_is_covered_and_what_was_asked_for_so_is_not(site: Site) -> None:
    async def told() -> AsyncIterator[str]:
        yield ",".join(await site.held_now())

    @site.app.get("/whole")
    async def whole(lease: Annotated[Lease, Depends(Held("a"))]) -> StreamingResponse:
        return StreamingResponse(told())

    @site.app.get("/handler")
    async def handler(
        lease: Annotated[Lease, Depends(Held("a"), scope="function")],
    ) -> StreamingResponse:
        return StreamingResponse(told())

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
    import asyncio

    async def told() -> AsyncIterator[str]:
        yield "a"
        site.started.set()
        try:
            await asyncio.sleep(60)
        finally:
            site.ended.append("ended")
        yield "b"

    @site.app.get("/")
    async def stream(lease: Annotated[Lease, Depends(Held("a"))]) -> StreamingResponse:
        return StreamingResponse(told())

    site.lose()
    with (
        TestClient(site.app) as client,
        pytest.raises(RuntimeError, match="response already started") as info,
    ):
        client.get("/")
    assert isinstance(info.value.__cause__, LeaseLost)
    assert site.ended == ["ended"]


def test_a_handler_that_swallows_its_cancellation_does_not_answer_well(site: Site) -> None:
    @site.app.get("/")
    async def work(lease: Annotated[Lease, Depends(Held("a"), scope="function")]) -> str:
        import asyncio

        site.started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        return "done"

    site.lose()
    with site.client as client:
        assert client.get("/").status_code == 500


def test_an_error_of_the_handler_is_its_own(site: Site) -> None:
    @site.app.get("/")
    async def fail(lease: Annotated[Lease, Depends(Held("a"))]) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"), TestClient(site.app) as client:
        client.get("/")


def test_openapi_describes_contention_and_outages(site: Site) -> None:
    router = APIRouter(prefix="/in")

    @router.post("/router/{order_id}", dependencies=[Depends(Held("o:{order_id}"))])
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
        paths = client.get("/openapi.json").json()["paths"]
        client.get("/openapi.json").raise_for_status()

    def codes(path: str, method: str = "get") -> set[str]:
        return set(paths[path][method]["responses"]) - {"200", "422"}

    assert codes("/in/router/{order_id}", "post") == {"409", "503"}
    assert codes("/own") == {"423", "503"}
    assert codes("/free") == {"429", "503"}
    assert codes("/nothing") == set()
    assert paths["/said"]["get"]["responses"]["409"]["description"] == "Try later"
    busy = paths["/own"]["get"]["responses"]["423"]
    assert busy["description"] == "The resource is in use"
    assert "retry_after" in busy["content"]["application/problem+json"]["schema"]["properties"]
    assert "Retry-After" in busy["headers"]
