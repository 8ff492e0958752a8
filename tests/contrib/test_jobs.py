"""Locked jobs of arq's with a Redis, and locked actors of Dramatiq's with a broker in memory."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import dramatiq
import pytest
from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO, CurrentMessage

import dibs.contrib.arq
import dibs.contrib.dramatiq
import dibs.sync
from dibs import AcquireTimeout, LeaseLost
from tests.servers.waiting import wait_until

type Job = dict[Any, Any]


async def test_contention_uses_up_no_tries_of_arqs_and_a_lost_lease_cancels(redis_url: str) -> None:
    ended = asyncio.Event()
    async with dibs.connect(redis_url) as client:

        @dibs.contrib.arq.locked("a:{number}", client=client, delay="10ms")
        async def work(ctx: Job, number: int) -> int:
            if number == 7:
                return int(ctx["job_try"])
            try:
                await client.lock(f"a:{number}").revoke(reason="a test", now=True)
                await asyncio.sleep(60)
            finally:
                ended.set()
            return 0

        @dibs.contrib.arq.locked("outer:{number}", client=client)
        async def outer(ctx: Job, number: int) -> int:
            return await work(ctx, number)

        redis = await create_pool(RedisSettings.from_dsn(redis_url))
        functions = [func(each, name=each.__name__, max_tries=1) for each in (work, outer)]
        options = {"handle_signals": False, "poll_delay": 0.01}
        worker = Worker(functions, redis_pool=redis, burst=True, **options)  # type: ignore[arg-type]
        async with client.lock("a:7"):
            waits = await redis.enqueue_job("outer", 7)
            running = asyncio.create_task(worker.async_run())
            while worker.jobs_retried < 3:
                await asyncio.sleep(0.01)
        await running
        lost = await redis.enqueue_job("work", 8)
        await worker.async_run()
        assert waits
        assert await waits.result() == 1
        assert lost
        with pytest.raises(LeaseLost):
            await lost.result()
        assert ended.is_set()
        await redis.aclose()


class Tries(dramatiq.Middleware):
    """What came of each try of a message."""

    def __init__(self) -> None:
        self.found: list[object] = []

    def after_process_message(
        self, broker: Any, message: Any, *, result: object = None, exception: object = None
    ) -> None:
        self.found.append(exception or result)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_contention_uses_up_no_retries_of_dramatiqs_and_a_lost_lease_fails(kind: str) -> None:
    client = dibs.sync.connect(f"memory://{uuid4()}")
    tries, broker = Tries(), StubBroker()
    for middleware in (AsyncIO(), CurrentMessage(), tries):
        broker.add_middleware(middleware)

    def plain(number: int) -> None:
        assert dibs.sync.current_lease().wait_lost(20)

    async def coroutine(number: int) -> None:
        await asyncio.sleep(60)

    held = dibs.contrib.dramatiq.locked("a:{number}", client=client, delay="10ms")(
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
        client.close()


def called(library: str, **options: Any) -> Callable[[int], str]:
    """A locked function, called without a worker."""
    if library == "dramatiq":
        return dibs.contrib.dramatiq.locked("a:{number}", **options)(lambda number: "done")

    async def job(ctx: Job, number: int) -> str:
        return "done"

    held = dibs.contrib.arq.locked("a:{number}", **options)(job)
    return lambda number: asyncio.run(held({}, number))


@pytest.mark.parametrize("library", ["arq", "dramatiq"])
def test_a_call_without_a_worker_is_not_run_again(library: str) -> None:
    with dibs.sync.connect(f"memory://{uuid4()}") as client:
        raises = called(library, client=client)
        skips = called(library, client=client, on_busy="skip", default="skipped")
        assert raises(7) == "done"
        with client.lock("a:7"):
            assert skips(7) == "skipped"
            with pytest.raises(AcquireTimeout, match="a:7 is held"):
                raises(7)
        with pytest.raises(ValueError, match="'retry', 'skip' or 'raise'"):
            called(library, on_busy="wait")
    with pytest.raises(TypeError, match="no coroutine function"):
        dibs.contrib.arq.locked("a")(lambda ctx: None)
