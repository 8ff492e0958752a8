"""Contention, and a store that is away, as HTTP tells them."""

from datetime import date
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, WebSocket
from fastapi.testclient import TestClient

from dibs import Lease, Lock, current_lease
from dibs.contrib.fastapi import Held, lifespan, problems
from tests.contrib.site import Site

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
