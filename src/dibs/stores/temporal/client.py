"""A process's connection to a Temporal server, and its calls of brokers."""

import asyncio
import atexit
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from logging import getLogger
from typing import Any
from weakref import WeakValueDictionary

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowExecution
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError

from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.core.codec import decode_reply, encode
from dibs.core.names import shown
from dibs.errors import BackendUnavailable, DibsError, IncompatibleVersion, NotConfigured
from dibs.model import Acquire, Command, Failed, Release, Reply
from dibs.process import on_fork
from dibs.stores.loop_thread import keep_for_ever
from dibs.stores.port import error_of_batch, failed_reply
from dibs.stores.temporal import errors, ids, wire
from dibs.stores.temporal.url import TemporalSettings, TemporalTarget

log = getLogger("dibs")

CONNECT_TIMEOUT = 5.0
"""Seconds that connecting can take."""

LOOK = timedelta(seconds=1)
"""How long a question about a task queue or the server can take."""

PARALLEL = 8
"""Brokers that a batch calls at a time, if they may have to start."""

RECENT = 100
"""Keys that a store lists before the server's index has them."""

REST = 0.1
"""Seconds that the end of the process waits for Temporal's threads."""

FORKED = (
    "temporal:// was used before this process was forked, and its connection does not work in the child: "
    "connect in the child, or start it with spawn"
)


class BrokerClient:
    """A store's connection, and its calls of brokers. All event loops share one.

    A server takes ten updates of a workflow at a time. So an event loop has one call for a key under way.
    """

    def __init__(self, settings: TemporalSettings, given: Client | None = None) -> None:
        """`given`: the user's own client, to be used instead of a new one."""
        self.settings: TemporalSettings = settings
        self._client = given
        self._target = None if given is None else TemporalTarget.of(given)
        self._is_inherited = False
        self._turns: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, bytes], asyncio.Lock]
        self._turns = WeakValueDictionary()
        self._recent: deque[bytes] = deque(maxlen=RECENT)
        """Keys that were acquired last."""
        on_fork(self)

    @property
    def target(self) -> TemporalTarget:
        """Where it is connected to."""
        if self._target is None:
            self._target = self.settings.target()
        return self._target

    async def client(self) -> Client:
        """Return the client; connect if that is not done. Raises like `connect`."""
        if self._is_inherited:
            raise NotConfigured(FORKED)
        if self._client is None:
            self._client = await connect(
                self.target, CONNECT_TIMEOUT, runtime=_runtime(os.getpid())
            )
        return self._client

    def after_fork(self) -> None:
        """In the child: what was inherited cannot be used, nor taken apart."""
        if self._client is not None:
            keep_for_ever(self._client)
            self._is_inherited = True

    # -- calls --------------------------------------------------------------------------------------

    async def apply(self, commands: Sequence[Command], seconds: float) -> list[Reply]:
        """Return a reply for each command. Raises what has befallen all: see `error_of_batch`.

        Each broker has `seconds` to answer, from when it is called.
        """
        room = asyncio.Semaphore(PARALLEL)

        async def ask(key: bytes, part: Sequence[int]) -> Sequence[Reply] | DibsError:
            of_key = [commands[number] for number in part]
            if not any(map(_leaves_something, of_key)):  # a renewal waits for no silent broker
                return await self._ask(key, of_key, seconds)
            async with room:
                return await self._ask(key, of_key, seconds)

        parts: dict[bytes, list[int]] = {}
        for number, command in enumerate(commands):
            if not wire.is_too_long(command):
                parts.setdefault(command.key, []).append(number)
            if isinstance(command, Acquire) and command.key not in self._recent:
                self._recent.append(command.key)
        results = await asyncio.gather(*(ask(key, part) for key, part in parts.items()))
        replies: list[Reply] = [Failed("invalid", wire.TOO_LONG)] * len(commands)
        for part, found in zip(parts.values(), results, strict=True):
            if isinstance(found, DibsError):
                found = [failed_reply(found)] * len(part)
            for number, reply in zip(part, found, strict=True):
                replies[number] = reply
        failures = [each for each in results if isinstance(each, DibsError)]
        if failures and len(failures) == len(results) and (error := error_of_batch(failures)):
            raise error
        return replies

    async def _ask(
        self, key: bytes, commands: Sequence[Command], seconds: float
    ) -> Sequence[Reply] | DibsError:
        turn = self._turns.setdefault((asyncio.get_running_loop(), key), asyncio.Lock())
        try:
            async with asyncio.timeout(seconds), turn:
                with errors.explained(self.target):
                    return await self._update(key, commands)
        except TimeoutError:
            return await self._why_silent(key, seconds)
        except DibsError as error:
            return error

    async def _update(self, key: bytes, commands: Sequence[Command]) -> Sequence[Reply]:
        """Call a broker, with a start of it if it needs one. Raises Temporal's own errors."""
        client = await self.client()
        call = wire.BrokerCall([encode(each) for each in commands])
        if any(map(_leaves_something, commands)):
            answer = await self._update_with_start(client, key, call)
        else:
            broker = client.get_workflow_handle(ids.broker_id(key))
            try:
                answer = await broker.execute_update(ids.APPLY, call, result_type=wire.BrokerAnswer)
            except RPCError as error:
                if not errors.is_no_broker(error):
                    raise
                # so nothing is held
                return [ledger.apply(MemoryBook(), command, 0.0, 0)[0] for command in commands]
        newer = wire.too_new("the answer", answer.format, "this release of Dibs", wire.FORMAT)
        if newer:
            raise IncompatibleVersion(f"{self.target}: {newer}")
        return [decode_reply(each, key) for each in answer.replies]

    async def _update_with_start(
        self, client: Client, key: bytes, call: wire.BrokerCall
    ) -> wire.BrokerAnswer:
        """One round trip, also where there is no broker yet."""
        text = wire.text_of(key)
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            ids.BROKER,
            wire.BrokerInput(text),
            id=ids.broker_id(key),
            task_queue=self.settings.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            memo={ids.MEMO: text},
            static_summary=f"leases of {shown(key)}"[:200],
        )
        try:
            answer: wire.BrokerAnswer = await client.execute_update_with_start_workflow(
                ids.APPLY, call, start_workflow_operation=start, result_type=wire.BrokerAnswer
            )
        except BaseException:
            # or the loop logs that the handle's error was never retrieved; there need not be one
            with suppress(BaseException):
                async with asyncio.timeout(0):
                    await start.workflow_handle()
            raise
        return answer

    async def wait(self, key: bytes, inbox: str) -> wire.Waited:
        """Wait at a key's broker for an inbox's notifications."""
        with errors.explained(self.target):
            broker = (await self.client()).get_workflow_handle(ids.broker_id(key))
            found: wire.Waited = await broker.execute_update(
                ids.WAIT, inbox, result_type=wire.Waited
            )
            return found

    async def _why_silent(self, key: bytes, seconds: float) -> DibsError:
        """Why there was no answer within so many seconds."""
        queue, broker = self.settings.task_queue, ids.broker_id(key)
        try:
            async with asyncio.timeout(LOOK.total_seconds()):
                client = await self.client()
                with suppress(RPCError):  # it may run on another queue
                    queue = (await client.get_workflow_handle(broker).describe()).task_queue
                polled = await pollers(client, queue)
        except TimeoutError:
            return errors.explain(TimeoutError(), self.target)
        except DibsError as error:
            return error
        why = f"is the worker of the task queue {queue!r} well? It did not answer within {seconds:.3g} s"
        if not polled:
            why = ids.unserved_message(queue, ", so nothing can be granted")
        return BackendUnavailable(
            f"{self.target}: {why}: {ids.serve_hint(queue)}; or name another queue with ?task_queue= or "
            f"TEMPORAL_TASK_QUEUE, and, if nobody holds anything there, {ids.terminate_hint(broker)}, so "
            "that it is started anew"
        )

    async def keys(self) -> set[bytes]:
        """Keys whose brokers run, as the server's index has them, and those that were acquired here last."""
        client, found = await self.client(), set(self._recent)
        with errors.explained(self.target):
            query = f"WorkflowType = '{ids.BROKER}' AND ExecutionStatus = 'Running'"
            async for run in client.list_workflows(query):
                found.add(await _key_of(run))
        return found - {b""}


async def _key_of(run: WorkflowExecution) -> bytes:
    """The key of a broker, from its memo; empty if that cannot be read."""
    try:
        return wire.bytes_of(await run.memo_value(ids.MEMO, type_hint=str))
    except Exception as error:  # noqa: BLE001 -- of another data converter than it was written by
        log.warning("%s isn't listed, as its name can't be read: %s", run.id, error)
        return b""


def _leaves_something(command: Command) -> bool:
    """It can change the book of a key of which nothing is known."""
    return isinstance(command, Acquire) or (isinstance(command, Release) and command.tombstone > 0)


# -- the connection -----------------------------------------------------------------------------------


async def connect(target: TemporalTarget, within: float, **options: Any) -> Client:
    """Return a client. Raises `BackendUnavailable`, `Forbidden` and `NotConfigured`."""
    wait_for_threads_at_exit()
    try:
        with errors.explained(target):
            async with asyncio.timeout(within):
                return await Client.connect(
                    target.address, namespace=target.namespace, **options, **target.options
                )
    except (RuntimeError, TimeoutError) as error:
        raise errors.explain(error, target) from error
    except (ValueError, TypeError) as error:
        raise NotConfigured(f"{target} can't be connected to: {error}") from error


async def pollers(client: Client, queue: str) -> dict[str, float]:
    """When each worker of a queue asked for workflow tasks, in seconds since 1970, by its identity.

    The server tells this by its own clock, and remembers a worker for some minutes after its end.
    """
    question = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    with errors.explained(TemporalTarget.of(client)):
        found = await client.workflow_service.describe_task_queue(
            question, retry=True, timeout=LOOK
        )
    return {each.identity: each.last_access_time.ToNanoseconds() / 1e9 for each in found.pollers}


@cache
def _runtime(pid: int) -> Runtime:
    """Temporal's threads of a process. A forked child has none of its parent's, and could not end them."""
    found = Runtime(telemetry=TelemetryConfig())
    keep_for_ever(found)
    return found


@cache
def wait_for_threads_at_exit() -> None:
    """Have the end of this process wait a moment for Temporal's threads.

    A thread of Temporal's that takes Python's lock while the interpreter ends kills the process:
    https://github.com/temporalio/sdk-python/issues/300.
    """
    atexit.register(time.sleep, REST)
