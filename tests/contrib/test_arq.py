"""Locked jobs of arq's, in a worker of its own with a Redis."""

import asyncio
from typing import Any

import pytest
from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

import dibs
from dibs import AcquireTimeout, LeaseLost
from dibs.contrib.arq import locked

type Job = dict[Any, Any]


async def test_contention_uses_up_no_tries_and_a_lost_lease_cancels(redis_url: str) -> None:
    ended = asyncio.Event()
    async with dibs.connect(redis_url) as client:

        @locked("a:{number}", client=client, delay="10ms")
        async def work(ctx: Job, number: int) -> int:
            if number == 7:
                return int(ctx["job_try"])
            try:
                await client.lock(f"a:{number}").revoke(reason="a test", now=True)
                await asyncio.sleep(60)
            finally:
                ended.set()
            return 0

        @locked("outer:{number}", client=client)
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


async def test_a_call_without_a_worker_is_not_run_again() -> None:
    async with dibs.connect("memory://") as client:

        async def work(ctx: Job, number: int) -> str:
            return "done"

        raises = locked("a:{number}", client=client)(work)
        skips = locked("a:{number}", client=client, on_busy="skip", default="skipped")(work)
        with pytest.raises(TypeError, match="no coroutine function"):
            locked("a")(lambda ctx: None)
        assert await raises({}, 7) == "done"
        async with client.lock("a:7"):
            assert await skips({}, 7) == "skipped"
            with pytest.raises(AcquireTimeout, match="a:7 is held"):
                await raises({}, 7)
