"""How long a request's lease is held, and what becomes of one that is lost."""

from collections.abc import AsyncIterator
from typing import Annotated

import pytest
from fastapi import BackgroundTasks, Depends
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

from dibs import Lease, LeaseLost
from dibs.contrib.fastapi import Held
from tests.contrib.site import Site


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
