"""Locked actors of Dramatiq's, in a worker of its own with a broker in memory."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO, CurrentMessage

import dibs.sync
from dibs import AcquireTimeout, LeaseLost
from dibs.contrib.dramatiq import locked
from tests.servers.waiting import wait_until


class Tries(dramatiq.Middleware):
    """What came of each try of a message."""

    def __init__(self) -> None:
        self.found: list[object] = []

    def after_process_message(
        self, broker: Any, message: Any, *, result: object = None, exception: object = None
    ) -> None:
        self.found.append(exception or result)


@pytest.fixture
def client() -> Iterator[dibs.sync.Client]:
    with dibs.sync.connect(f"memory://{uuid4()}") as client:
        yield client


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_contention_uses_up_no_retries_and_a_lost_lease_fails(
    client: dibs.sync.Client, kind: str
) -> None:
    tries, broker = Tries(), StubBroker()
    for middleware in (AsyncIO(), CurrentMessage(), tries):
        broker.add_middleware(middleware)

    def plain(number: int) -> None:
        assert dibs.sync.current_lease().wait_lost(20)

    async def coroutine(number: int) -> None:
        await asyncio.sleep(60)

    held = locked("a:{number}", client=client, delay="10ms")(
        coroutine if kind == "async def" else plain
    )
    actor = dramatiq.actor(held, broker=broker, actor_name="a", max_retries=0)  # type: ignore[call-overload]
    worker = dramatiq.Worker(broker, worker_timeout=10)
    worker.start()
    try:
        with client.lock("a:7"):
            actor.send(7)
            wait_until(lambda: len(tries.found) > 2, "it is tried again and again")
        assert {type(found) for found in tries.found} == {dramatiq.Retry}
        wait_until(lambda: client.lock("a:7").revoke(reason="a test", now=True), "it runs")
        with pytest.raises(LeaseLost):
            broker.join("default", timeout=20_000, fail_fast=True)
    finally:
        worker.stop()
        broker.close()


def test_a_call_without_a_message_is_not_sent_again(client: dibs.sync.Client) -> None:
    def work(number: int) -> str:
        return "done"

    raises = locked("a:{number}", client=client)(work)
    skips = locked("a:{number}", client=client, on_busy="skip", default="skipped")(work)
    assert raises(7) == "done"
    with client.lock("a:7"):
        assert skips(7) == "skipped"
        with pytest.raises(AcquireTimeout, match="a:7 is held"):
            raises(7)
    with pytest.raises(ValueError, match="'retry', 'skip' or 'raise'"):
        locked("a", on_busy="wait")  # type: ignore[arg-type]
