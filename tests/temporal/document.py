"""A decorator of activities that does what the document's does, its defects included: ours is measured by it.

Its locks are keys in Redis, which its interceptor has activities of its own take and give back, before and
after the activity that was decorated. Numbers as in the notes.
"""

import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError
from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

METADATA = "__lock_metadata__"

MINUTE = 60.0
"""Its pause between two tries."""

TAKE, GIVE_BACK = "acquire_distributed_lock", "release_distributed_lock"

DELETE_IF_MINE = """
local owner = redis.call('GET', KEYS[1])
if not owner then return -1 end
if owner ~= ARGV[1] then return -2 end
redis.call('DEL', KEYS[1])
return 1
"""


def needs_lock[F: Callable[..., Any]](
    max_locks: int = 5, lock_name: str | None = None
) -> Callable[[F], F]:
    """Leaves a mark, and nothing that would keep the activity from running without its lock (1)."""

    def decorate(function: F) -> F:
        setattr(function, METADATA, (lock_name or function.__name__, max_locks))
        return function

    return decorate


class DocumentLocks:
    """Its two activities, for a worker whose slots and queue they share with all others (12)."""

    def __init__(self, url: str, lots: random.Random) -> None:
        self._url = url
        self._lots = lots
        self.tries = 0

    @property
    def activities(self) -> list[Callable[..., Any]]:
        return [self.take, self.give_back]

    @activity.defn(name=TAKE)
    async def take(self, name: str, slots: int, ttl: int, owner: str) -> str:
        """Draws one slot by lot (3), and doesn't know its own owner again (5)."""
        self.tries += 1
        key = f"{name}:{self._lots.randrange(slots)}"
        try:
            async with redis.asyncio.from_url(self._url) as client:
                await client.ping()
                taken = await client.set(key, owner, nx=True, ex=ttl)
        except RedisError as error:
            raise ApplicationError(f"no lock: {error}", non_retryable=True) from error  # (8)
        if not taken:
            raise ApplicationError(f"{key} is taken")
        return key

    @activity.defn(name=GIVE_BACK)
    async def give_back(self, key: str, owner: str) -> int:
        """That it wasn't there any more is but a number (7)."""
        async with redis.asyncio.from_url(self._url) as client:
            await client.ping()
            return int(await client.eval(DELETE_IF_MINE, 1, key, owner))


class DocumentInterceptor(Interceptor):
    """Knows the activities of the workflows' own worker by their names, and no others (10).

    Its later release awaits what an activity returned once more (2): `awaits_twice`.
    """

    def __init__(
        self,
        functions: Sequence[Callable[..., Any]],
        *,
        application: str = "shop",
        pause: float = MINUTE,
        awaits_twice: bool = False,
    ) -> None:
        self.application = application
        self.pause = timedelta(seconds=pause)
        self.awaits_twice = awaits_twice
        self._locks = {
            str(getattr(each, "__temporal_activity_definition").name): lock
            for each in functions
            if (lock := getattr(each, METADATA, None)) is not None
        }

    def lock_of(self, name: str) -> tuple[str, int] | None:
        found: tuple[str, int] | None = self._locks.get(name)
        return found

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002  # its name there
    ) -> type[WorkflowInboundInterceptor]:
        document = self

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(_Outbound(outbound, document))

        return Inbound


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(
        self, following: WorkflowOutboundInterceptor, document: DocumentInterceptor
    ) -> None:
        super().__init__(following)
        self._document = document

    def start_activity(self, input: StartActivityInput) -> Any:  # noqa: A002  # its name there
        """A coroutine where Temporal promises a handle (9)."""
        lock = self._document.lock_of(input.activity)
        return self._bare(input) if lock is None else self._locked(input, *lock)

    async def _bare(self, start: StartActivityInput) -> Any:
        return await self.next.start_activity(start)

    async def _locked(self, start: StartActivityInput, name: str, slots: int) -> Any:
        if start.schedule_to_close_timeout is None:
            raise ApplicationError("schedule_to_close_timeout is required", non_retryable=True)
        ttl = int(start.schedule_to_close_timeout.total_seconds())  # from now, and rounded down (4)
        owner = f"{self._document.application}:{workflow.info().run_id}"  # the run's, for all (6)
        key = await self._take(name, slots, ttl, owner)
        try:
            result = await self.next.start_activity(start)
            return await result if self._document.awaits_twice else result
        finally:
            await self._give_back(key, owner)

    def _take(self, name: str, slots: int, ttl: int, owner: str) -> Coroutine[Any, Any, str]:
        """Commands that a running workflow's history doesn't have (11), tried for ever (8)."""
        return workflow.execute_activity(
            TAKE,
            args=[name, slots, ttl, owner],
            result_type=str,
            start_to_close_timeout=timedelta(seconds=30),
            schedule_to_close_timeout=workflow.info().execution_timeout,
            retry_policy=RetryPolicy(initial_interval=self._document.pause, backoff_coefficient=1),
        )

    async def _give_back(self, key: str, owner: str) -> None:
        with suppress(Exception):  # whatever it is, nobody is told
            if not owner.endswith(workflow.info().run_id):
                return  # collected as garbage, in the midst of another test's workflow
            await workflow.execute_activity(
                GIVE_BACK,
                args=[key, owner],
                start_to_close_timeout=timedelta(seconds=5),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
