"""The dependency that holds a lease while a request is served."""

import threading
from datetime import date
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, Query

from dibs import Lease
from dibs.contrib.fastapi import Held, problems
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
