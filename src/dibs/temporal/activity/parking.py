"""A long wait without an activity slot: the attempt stays open at the server, and nothing runs here.

The attempt is completed asynchronously, as Temporal calls it. Once the lock is granted it ends with
a failure that is tried again at once, and the lease goes along to the next attempt, whichever worker
that runs on. So a wait of any length costs one attempt, and none where the server can be told to
allow one more.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta

from temporalio import activity
from temporalio.activity import Info
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.common.v1 import RetryPolicy, WorkflowExecution
from temporalio.api.workflowservice.v1 import UpdateActivityOptionsRequest
from temporalio.client import AsyncActivityCancelledError, AsyncActivityHandle, Client
from temporalio.converter import ActivitySerializationContext
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

import dibs
from dibs.errors import DibsError
from dibs.temporal.activity import failures
from dibs.temporal.activity.handover import packed
from dibs.temporal.activity.slots import name_shown
from dibs.temporal.activity.waiting import Wait, WaitingRoom, Which

log = logging.getLogger("dibs")

HANDOVER_TTL = 30.0
"""The lease stands so long at least until the next attempt has begun, in seconds."""

RPC_TIMEOUT = timedelta(seconds=5)

REFUSED = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.UNIMPLEMENTED})
"""What a server answers that has done nothing, now or at an earlier try of the same request.

Not NOT_FOUND: the client's own second try gets that, of an attempt that the first has ended.
"""


class Parked:
    """An attempt that waits and has no slot."""

    def __init__(
        self,
        room: WaitingRoom,
        which: Which,
        wait: Wait,
        client: Client,
        store: dibs.Client,
        info: Info,
        *,
        beat_every: float,
        until: float | None,
    ) -> None:
        self._room = room
        self._which = which
        self._wait = wait
        self._store = store
        self._info = info
        self._details = list(info.heartbeat_details)
        self._beat_every = beat_every
        self._until = until
        """By the loop's clock: then the server would give up on the attempt."""
        self._handle = _handle(client, info)
        self._key = name_shown(wait.slots)

    async def run(self) -> None:
        """Wait, and tell the server what came of it."""
        shutdown = asyncio.create_task(activity.wait_for_worker_shutdown())
        try:
            await self._until_something_happens(shutdown)
        except AsyncActivityCancelledError as error:
            await self._wait.give_up()
            await self._cancelled(error)
        except RPCError as error:
            await self._wait.give_up()
            if error.status != RPCStatusCode.NOT_FOUND:
                log.warning("a wait for %s was given up: %s", self._key, error)
        except Exception:  # such as what a user's own converter raises
            await self._wait.give_up()
            log.exception("a wait for %s has failed", self._key)
        except BaseException:
            self._wait.task.cancel()
            raise
        finally:
            shutdown.cancel()

    async def _until_something_happens(self, shutdown: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            left = self._beat_every
            if self._until is not None:
                left = min(left, self._until - loop.time())
            await asyncio.wait(
                {self._wait.task, shutdown},
                timeout=max(left, 0.0),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._wait.task.done():
                return await self._tell_outcome()
            if shutdown.done():
                await self._wait.give_up()
                return await self._fail(failures.waiting(self._key, self._wait.waited))
            if self._until is not None and loop.time() >= self._until:
                self._room.linger(self._which, self._wait)
                return await self._fail(failures.waiting(self._key, self._wait.waited))
            await self._beat()

    async def _beat(self) -> None:
        try:
            await self._handle.heartbeat(*self._details, rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise
            log.info("a heartbeat while waiting for %s failed: %s", self._key, error)

    async def _tell_outcome(self) -> None:
        try:
            lease = self._wait.task.result()
        except DibsError as error:
            return await self._fail(failures.refusal(error))
        await self._beat()  # so that a cancelled activity isn't handed anything
        try:
            await lease.renew(max(lease.ttl, HANDOVER_TTL))
            handle = lease.detach()
        except DibsError as error:
            await lease.release()
            return await self._fail(failures.refusal(error))
        try:
            await self._fail(failures.granted(self._key), packed(handle, self._info.attempt + 1))
        except RPCError as error:
            if error.status in REFUSED:  # nobody will come for it
                with suppress(DibsError):
                    await (await self._store.attach(handle)).release()
            # Else only the reply may be lost, and the next attempt may run with the lease by now.
            # If nobody came for it, it runs out.
            raise

    async def _cancelled(self, error: AsyncActivityCancelledError) -> None:
        about = error.details
        with suppress(RPCError):
            if about is None or about.cancel_requested:
                await self._handle.report_cancellation(rpc_timeout=RPC_TIMEOUT)
            else:
                kind = "ActivityPause" if about.paused else "ActivityReset"
                told = f"it was waiting for {self._key}"
                await self._fail(ApplicationError(told, type=kind))

    async def _fail(self, error: ApplicationError, *more: object) -> None:
        await self._handle.fail(
            error, last_heartbeat_details=[*self._details, *more], rpc_timeout=RPC_TIMEOUT
        )


def _handle(client: Client, info: Info) -> AsyncActivityHandle:
    """With the context that a user's own converter may need."""
    known = {
        "namespace": info.namespace,
        "workflow_id": info.workflow_id,
        "workflow_type": info.workflow_type,
        "activity_type": info.activity_type,
        "activity_id": info.activity_id,
        "activity_task_queue": info.task_queue,
        "is_local": info.is_local,
    }
    names = {each.name for each in fields(ActivitySerializationContext)}
    context = ActivitySerializationContext(**{k: v for k, v in known.items() if k in names})  # type: ignore[arg-type]
    return client.get_async_activity_handle(task_token=info.task_token).with_context(context)


async def spares_an_attempt(client: Client, info: Info) -> bool:
    """Whether one more attempt is no matter: there is no limit, or the server has just raised it by one."""
    limit = info.retry_policy.maximum_attempts if info.retry_policy else 0
    if limit == 0:
        return True
    if info.workflow_id is None or info.is_local:
        return False
    request = UpdateActivityOptionsRequest(
        namespace=info.namespace,
        execution=WorkflowExecution(
            workflow_id=info.workflow_id, run_id=info.workflow_run_id or ""
        ),
        identity=client.identity,
        id=info.activity_id,
        activity_options=ActivityOptions(retry_policy=RetryPolicy(maximum_attempts=limit + 1)),
    )
    request.update_mask.paths.append("retry_policy.maximum_attempts")
    try:
        await client.workflow_service.update_activity_options(request, timeout=RPC_TIMEOUT)
    except RPCError as error:
        log.info(
            "%s waits in its slot, as an attempt can't be spared: %s", info.activity_type, error
        )
        return False
    return True
