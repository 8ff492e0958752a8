"""A process's connection to a Temporal server, and its calls of brokers.

Temporal lets ten updates be under way in one workflow, and takes some work for each. So one call for a key is
under way at a time, and what gathers behind it leaves together.
"""

import asyncio
import atexit
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs.clock import SystemClock
from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.core.codec import decode_reply, encode
from dibs.core.names import shown
from dibs.errors import (
    BackendUnavailable,
    DibsError,
    Forbidden,
    IncompatibleVersion,
    NotConfigured,
)
from dibs.model import Acquire, Command, Failed, Release, Reply
from dibs.process import FreshLock, on_fork
from dibs.stores.loop_thread import keep_for_ever
from dibs.stores.port import MAX_BATCH, error_of_batch, failed_reply, time_limit
from dibs.stores.temporal import errors, ids, wire
from dibs.stores.temporal.url import TemporalSettings, TemporalTarget

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.runtime import Runtime
    from temporalio.service import RPCError

CONNECT_TIMEOUT = 5.0
"""Seconds that connecting can take."""

TIMEOUT = 10.0
"""Seconds that a call can take at most; a call of leases with a short ttl has less."""

PARALLEL = 16
"""Keys that one event loop calls at a time."""

LOOK = timedelta(seconds=2)
"""How long a question about a queue can take."""

DOUBT = 0.3
"""Seconds without an answer after which we ask the server whether a worker serves the queue."""

SERVED = 10.0
"""Seconds after an answer in which we do not ask that: a server that is busy should not have more to do."""

FULL_PAUSE = 0.2
"""Seconds before a call is made again that found ten under way. The server drops its work on those then, so
the pause doubles each time, also for what is called next.
"""

MAX_FULL_PAUSE = 5.0
"""Seconds of the longest pause of a waiter, whom nobody waits for. Others have `MAX_PAUSE`."""

MAX_PAUSE = 1.0
"""Seconds of the longest pause before a call is made again that might succeed soon."""

FORKED = (
    "temporal:// was used before this process was forked, and its connection does not work in the child: "
    "connect in the child, or start it with spawn"
)


def prepare() -> None:
    """Import what connecting needs, before anybody waits for a server: that takes a while."""
    for module in ("client", "runtime", "envconfig"):
        import_module(f"temporalio.{module}")


class TemporalConnection:
    """Connects when it is first asked for a client. Any loop's tasks can use the one client."""

    def __init__(self, settings: TemporalSettings) -> None:
        self.settings: TemporalSettings = settings
        self._target: TemporalTarget | None = None
        self._client: Client | None = None
        self._is_inherited = False
        on_fork(self)

    @property
    def target(self) -> TemporalTarget:
        """Where it is connected to."""
        found = self._target
        if found is None:
            found = self._target = self.settings.target()
        return found

    async def client(self) -> "Client":
        """The client. Raises `BackendUnavailable`, `Forbidden` and `NotConfigured`."""
        if self._is_inherited:
            raise NotConfigured(FORKED)
        found = self._client
        if found is None:
            found = self._client = await self._connect()
        return found

    async def _connect(self) -> "Client":
        from temporalio import service

        options: dict[str, Any] = {}
        if hasattr(service, "DnsLoadBalancingConfig"):  # it came later than what we need
            options["dns_load_balancing_config"] = None
        options["retry_config"] = service.RetryConfig(
            initial_interval_millis=50, max_elapsed_time_millis=2000, max_retries=1
        )
        return await connect(self.target, CONNECT_TIMEOUT, runtime=_threads.runtime(), **options)

    def explain(self, error: "RPCError") -> DibsError:
        """The error of Dibs that callers get.

        After a refusal the API key is looked up again, as it may have been exchanged meanwhile.
        """
        failure = errors.explain(error, self.target)
        if isinstance(failure, Forbidden):
            self._target = self._client = None
        return failure

    def after_fork(self) -> None:
        """In the child: what was inherited cannot be used, nor taken apart."""
        if self._client is not None:
            keep_for_ever(self._client)
            self._client, self._is_inherited = None, True


async def connect(target: TemporalTarget, within: float, **options: Any) -> "Client":
    """Return a client. Raises `BackendUnavailable`, `Forbidden` and `NotConfigured`."""
    from temporalio.client import Client
    from temporalio.service import RPCError

    connecting = Client.connect(
        target.address, namespace=target.namespace, **options, **target.options
    )
    try:
        async with asyncio.timeout(within):
            return await connecting
    except DibsError:
        raise
    except RPCError as error:
        raise errors.explain(error, target) from error
    except TimeoutError as error:
        silent = TimeoutError("it did not answer in time")
        raise errors.unreachable(silent, target) from error
    except RuntimeError as error:
        found = errors.explain_text(error, target) or errors.unreachable(error, target)
        raise found from error
    except (ValueError, TypeError) as error:
        raise NotConfigured(f"{target} can't be connected to: {error}") from error


async def pollers(client: "Client", queue: str) -> dict[str, float]:
    """When each worker of a queue asked for workflow tasks, in seconds since 1970, by its identity.

    The server tells this by its own clock, and remembers a worker for some minutes after its end.
    """
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
    from temporalio.service import RPCError

    question = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    try:
        found = await client.workflow_service.describe_task_queue(
            question, retry=True, timeout=LOOK
        )
    except RPCError as error:
        raise errors.explain(error, TemporalTarget.of(client)) from error
    return {each.identity: each.last_access_time.ToNanoseconds() / 1e9 for each in found.pollers}


# -- calls ------------------------------------------------------------------------------------------

type _Replies = asyncio.Future[Sequence[Reply]]
type _Pending = tuple[Sequence[Command], _Replies]
"""Commands about one key that came together, and what waits for their replies."""


class BrokerClient:
    """One event loop's calls of brokers."""

    def __init__(self, connection: TemporalConnection) -> None:
        self._connection = connection
        self._gathering: dict[bytes, list[_Pending]] = {}
        """By key, what waits for the call that is under way. A key without a call has none."""
        self._room = asyncio.Semaphore(PARALLEL)
        self._tasks: set[asyncio.Task[None]] = set()
        self._answered_at = -SERVED
        """When the last answer came."""
        self._full_pauses: dict[bytes, float] = {}
        """Seconds to pause for keys whose brokers had no room lately."""

    async def apply(self, commands: Sequence[Command]) -> list[Reply]:
        """Return a reply for each command. Raises what has befallen all: see `error_of_batch`."""
        parts: dict[bytes, list[int]] = {}
        for number, command in enumerate(commands):
            if not wire.is_too_long(command):
                parts.setdefault(command.key, []).append(number)
        results = await asyncio.gather(
            *(self._send(key, [commands[n] for n in part]) for key, part in parts.items()),
            return_exceptions=True,
        )
        replies: list[Reply] = [Failed("invalid", wire.TOO_LONG)] * len(commands)
        failures: list[DibsError] = []
        for part, each in zip(parts.values(), results, strict=True):
            if isinstance(each, DibsError):
                failures.append(each)
                each = [failed_reply(each)] * len(part)
            elif isinstance(each, BaseException):
                raise each
            for number, reply in zip(part, each, strict=True):
                replies[number] = reply
        if failures and len(failures) == len(results) and (error := error_of_batch(failures)):
            raise error
        return replies

    async def wait(self, key: bytes, inbox: str, after: int) -> wire.Waited:
        """Wait at a key's broker for an inbox's notifications. Raises Temporal's own errors."""
        from temporalio.service import RPCError

        client = await self._connection.client()
        broker = client.get_workflow_handle(ids.broker_id(key))
        await self._pause_if_full(key, MAX_FULL_PAUSE)
        try:
            found: wire.Waited = await _cancelled_as_usual(
                broker.execute_update(ids.WAIT, args=[inbox, after], result_type=wire.Waited)
            )
        except RPCError as error:
            if errors.is_full(error):
                self._was_full(key)
            raise
        self._had_room(key)
        return found

    async def _pause_if_full(self, key: bytes, longest: float) -> None:
        """Pause before a call if the broker had no room lately: others may be about to leave."""
        pause = min(self._full_pauses.get(key, 0.0), longest)
        if pause:
            await asyncio.sleep(pause * random.random())  # noqa: S311 -- no secret

    def _was_full(self, key: bytes) -> None:
        pause = 2 * self._full_pauses.get(key, FULL_PAUSE / 2)
        self._full_pauses[key] = min(pause, MAX_FULL_PAUSE)

    def _had_room(self, key: bytes) -> None:
        pause = self._full_pauses.pop(key, 0.0) / 2
        if pause > FULL_PAUSE / 4:
            self._full_pauses[key] = pause

    def _send(self, key: bytes, commands: Sequence[Command]) -> _Replies:
        """The replies, by a call of its own or with what gathers behind the one that is under way."""
        replies: _Replies = asyncio.get_running_loop().create_future()
        if key in self._gathering:
            self._gathering[key].append((commands, replies))
        else:
            self._gathering[key] = [(commands, replies)]
            task = asyncio.get_running_loop().create_task(self._serve(key))
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return replies

    async def _serve(self, key: bytes) -> None:
        """Call the key's broker until nothing gathers any more."""
        try:
            while self._gathering[key]:
                async with self._room:
                    await self._call_for(key, self._take(key))
        finally:
            for _, replies in self._gathering.pop(key):
                replies.cancel()

    def _take(self, key: bytes) -> list[_Pending]:
        """What has gathered and is still wanted, no more than a batch of it."""
        waiting = [each for each in self._gathering[key] if not each[1].done()]
        ends = accumulate(len(commands) for commands, _ in waiting)
        taken = max(sum(end <= MAX_BATCH for end in ends), 1)
        self._gathering[key] = waiting[taken:]
        return waiting[:taken]

    async def _call_for(self, key: bytes, taken: Sequence[_Pending]) -> None:
        try:
            found = await self._call(key, [each for commands, _ in taken for each in commands])
            for commands, replies in taken:
                its, found = found[: len(commands)], found[len(commands) :]
                if not replies.done():
                    replies.set_result(its)
        except Exception as error:  # noqa: BLE001 -- whoever waits for replies raises it
            for _, replies in taken:
                if not replies.done():
                    replies.set_exception(error)
        finally:
            for _, replies in taken:
                replies.cancel()  # of a loop that ends

    async def _call(self, key: bytes, commands: Sequence[Command]) -> Sequence[Reply]:
        """Call once, and again where the server had no room or the broker's run was about to end.

        All tries have one update id, so the call is applied once.
        """
        if not commands:
            return ()
        from temporalio.client import (
            WorkflowUpdateFailedError,
            WorkflowUpdateRPCTimeoutOrCancelledError,
        )
        from temporalio.service import RPCError

        # whoever gives the call up gets the reason before
        timeout = 0.9 * max(time_limit(command, TIMEOUT) for command in commands)
        until = time.monotonic() + timeout
        update_id, pause = str(uuid.uuid4()), 0.02
        longest = MAX_PAUSE
        if all(isinstance(command, Acquire) and command.queue for command in commands):
            longest = min(MAX_FULL_PAUSE, timeout / 4)
            await self._pause_if_full(key, longest)
        while True:
            try:
                replies = await self._try(key, commands, update_id, until, timeout)
                self._had_room(key)
                return replies
            except RPCError as error:
                failure, is_passing = self._connection.explain(error), errors.is_passing(error)
                if errors.is_full(error):
                    self._was_full(key)
                    pause = min(self._full_pauses[key], longest)
                failure.__cause__ = error
            except WorkflowUpdateFailedError as error:
                failure = errors.failed(error.cause, self._connection.target)
                failure.__cause__ = error
                is_passing = isinstance(failure, BackendUnavailable)
                update_id = str(uuid.uuid4())  # that one has failed for good
            except WorkflowUpdateRPCTimeoutOrCancelledError as error:
                raise await self.silence(key, timeout) from error
            if not is_passing or time.monotonic() + pause > until:
                raise failure
            await asyncio.sleep(pause * random.random())  # noqa: S311 -- no secret
            pause = min(2 * pause, MAX_PAUSE)

    async def _try(
        self, key: bytes, commands: Sequence[Command], update_id: str, until: float, timeout: float
    ) -> Sequence[Reply]:
        """Make the call. If none was answered lately, soon look once whether a worker serves the queue."""
        left = max(until - time.monotonic(), 0.01)
        sending = self._update(key, commands, update_id, timedelta(seconds=left))
        sent = _without_warning(asyncio.ensure_future(_cancelled_as_usual(sending)))
        try:
            await asyncio.wait((sent,), timeout=min(DOUBT, left / 2))
            if not sent.done() and time.monotonic() > self._answered_at + SERVED:
                looking = _without_warning(asyncio.ensure_future(self.silence(key, timeout)))
                await asyncio.wait((sent, looking), timeout=left / 2, return_when="FIRST_COMPLETED")
                if looking.done() and isinstance(looking.result(), _Unserved):
                    raise looking.result()
                looking.cancel()
            await asyncio.wait((sent,), timeout=max(until - time.monotonic(), 0))
            if not sent.done():  # it was taken, and is not answered
                raise await self.silence(key, timeout)
            replies = await sent
            self._answered_at = time.monotonic()
            return replies
        finally:
            sent.cancel()

    async def silence(self, key: bytes, timeout: float) -> DibsError:
        """Why there is no answer after so many seconds."""
        from temporalio.client import WorkflowExecutionStatus
        from temporalio.service import RPCError

        target, queue = self._connection.target, self._connection.settings.task_queue
        broker, ours = ids.broker_id(key), queue
        try:
            async with asyncio.timeout(1.0):
                client = await self._connection.client()
                with suppress(RPCError):
                    found = await client.get_workflow_handle(broker).describe(rpc_timeout=LOOK)
                    if found.status is WorkflowExecutionStatus.RUNNING:
                        queue = found.task_queue or ours
                polled = await pollers(client, queue)
        except TimeoutError:
            return errors.unanswered(target, queue, timeout, None)
        except DibsError as error:
            return error
        if not polled:
            return _Unserved(str(errors.unserved_by(target, queue, ours, broker)))
        ago = max(time.time() - max(polled.values()), 0.0)
        return errors.unanswered(target, queue, timeout, ago)

    async def _update(
        self, key: bytes, commands: Sequence[Command], update_id: str, within: timedelta
    ) -> Sequence[Reply]:
        """Send a call, with a start of the broker if it needs one. Raises Temporal's own errors."""
        from temporalio.service import RPCError, RPCStatusCode

        client = await self._connection.client()
        call = wire.BrokerCall([encode(each) for each in commands])
        if any(map(_leaves_something, commands)):
            answer = await self._with_start(client, key, call, update_id, within)
        else:
            broker = client.get_workflow_handle(ids.broker_id(key))
            try:
                answer = await broker.execute_update(
                    ids.APPLY, call, id=update_id, result_type=wire.BrokerAnswer, rpc_timeout=within
                )
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND or errors.is_no_namespace(error):
                    raise
                book, clock = MemoryBook(), SystemClock()  # no broker: nothing is held
                now, stamp = clock.now(), clock.stamp()
                return [ledger.apply(book, command, now, stamp)[0] for command in commands]
        newer = wire.too_new("the answer", answer.format, "this release of Dibs", wire.FORMAT)
        if newer:
            raise IncompatibleVersion(f"{self._connection.target}: {newer}")
        return [decode_reply(each, key) for each in answer.replies]

    async def _with_start(
        self, client: "Client", key: bytes, call: wire.BrokerCall, update_id: str, within: timedelta
    ) -> wire.BrokerAnswer:
        """One round trip, also where there is no broker yet."""
        from temporalio.client import WithStartWorkflowOperation
        from temporalio.common import WorkflowIDConflictPolicy

        text = wire.text_of(key)
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            ids.BROKER,
            wire.BrokerInput(text),
            id=ids.broker_id(key),
            task_queue=self._connection.settings.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            memo={ids.MEMO: text},
            static_summary=f"leases of {shown(key)}"[:200],
        )
        try:
            found: wire.BrokerAnswer = await client.execute_update_with_start_workflow(
                ids.APPLY,
                call,
                start_workflow_operation=start,
                id=update_id,
                result_type=wire.BrokerAnswer,
                rpc_timeout=within,
            )
        except BaseException:
            # or the loop logs that the handle's error was never retrieved; there need not be one
            with suppress(BaseException):
                async with asyncio.timeout(0):
                    await start.workflow_handle()
            raise
        return found


async def _cancelled_as_usual[T](call: Coroutine[Any, Any, T]) -> T:
    """Await a call. Temporal's own error of a cancelled one would be logged at the end of its loop."""
    from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

    try:
        return await call
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        if isinstance(error.__cause__, asyncio.CancelledError):
            raise error.__cause__ from None
        raise


def _without_warning[F: asyncio.Future[Any]](future: F) -> F:
    """The future. If it fails when nobody awaits it any more, its loop logs no warning."""
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return future


class _Unserved(BackendUnavailable):
    """No worker serves the queue, so it is of no use to wait."""


def _leaves_something(command: Command) -> bool:
    """It can change the book of a key of which nothing is known."""
    return isinstance(command, Acquire) or (isinstance(command, Release) and command.tombstone > 0)


# -- Temporal's threads -----------------------------------------------------------------------------

LEAST = 0.02
"""Seconds that Temporal's threads take to forget a call that has ended, if nothing else runs."""

CHECK = 0.01
CALM = 3
"""Checks in a row that must find all of them at rest."""

AT_MOST = 1.0
"""Seconds that they are waited for."""


class _Threads:
    """Temporal's threads of this process. No thread survives a fork, so a child has its own."""

    def __init__(self) -> None:
        self._lock = FreshLock()
        self._runtime: Runtime | None = None
        on_fork(self)

    def runtime(self) -> "Runtime":
        """What clients of this process share."""
        from temporalio.runtime import Runtime, TelemetryConfig

        with self._lock.held:
            if self._runtime is None:
                self._runtime = Runtime(telemetry=TelemetryConfig())
            return self._runtime

    def rest_at_exit(self) -> None:
        """Wait for threads that still hold what they have just told us of.

        One that asks for Python's lock while the interpreter ends would crash it.
        """
        if self._runtime is not None:
            rest()

    def after_fork(self) -> None:
        """In the child: the end of the parent's runtime would hang."""
        if self._runtime is not None:
            keep_for_ever(self._runtime)
        self._runtime = None


_threads = _Threads()
rest_at_exit: Callable[[], None] = _threads.rest_at_exit
atexit.register(rest_at_exit)


def rest() -> None:
    """Wait until no thread but Python's own is at work: a moment, or longer on a busy machine."""
    until = time.monotonic() + AT_MOST
    time.sleep(LEAST)
    calm = 0
    while calm < CALM and time.monotonic() < until:
        calm = 0 if _is_any_at_work() else calm + 1
        time.sleep(CHECK)  # a thread that waits for Python's lock gets it meanwhile


def _is_any_at_work() -> bool:
    """False as well where the system does not tell, as on macOS."""
    known = {thread.native_id for thread in threading.enumerate()}
    with suppress(OSError):  # a thread has ended
        for each in os.listdir("/proc/self/task"):
            if int(each) not in known:
                told = Path(f"/proc/self/task/{each}/stat").read_text("ascii", "replace")
                if told.rpartition(")")[2].split()[0] == "R":
                    return True
    return False
