"""An event loop's way to the server."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from dibs.core.names import PROBE
from dibs.core.timing import MIN_TTL
from dibs.errors import DibsError
from dibs.model import Command, Finding, Inspect, Notification, Page, Reply
from dibs.process import on_fork
from dibs.stores.aio import submit_in_task
from dibs.stores.loop_thread import keep_for_ever
from dibs.stores.port import Deliver, Done, GiveUp
from dibs.stores.temporal.client.calling import ABREAST, Caller
from dibs.stores.temporal.client.connecting import Connection, prepare
from dibs.stores.temporal.client.listening import Ear, asked_to_hear, inbox_of, waits_in_vain
from dibs.stores.temporal.client.pollers import ALIVE, ages, attended, last_heard, polled
from dibs.stores.temporal.client.scanning import Listings
from dibs.stores.temporal.client.updating import Update
from dibs.stores.temporal.protocol import ids
from dibs.stores.temporal.protocol.queues import serve, terminate, unserved
from dibs.stores.temporal.unheeded import unheeded

if TYPE_CHECKING:
    from temporalio.client import Client


class AsyncTemporalConnection:
    """See `AsyncConnection`: calls brokers, and has a mailbox once somebody waits."""

    parallel = ABREAST

    def __init__(
        self,
        connection: Connection,
        listings: Listings,
        ears: MutableMapping[str, Ear],
        new_caller: Callable[[], Caller],
    ) -> None:
        self._connection = connection
        self._listings = listings
        self._ears = ears
        self._new_caller = new_caller
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self.inbox = ""
        self._caller: Caller | None = None
        self._ear: Ear | None = None
        self._deliver: Deliver = _to_nobody

    async def open(self) -> None:
        """Connect to nothing yet: who calls first is told if that fails, and has a limit for it."""
        self._calls()

    def _calls(self) -> Caller:
        if self._caller is None:
            self._caller = self._new_caller()
            prepare()
        return self._caller

    async def close(self) -> None:
        self._caller = None  # what is on its way goes on
        ear, self._ear = self._ear, None
        self._ears.pop(self.inbox, None)
        self.inbox = ""
        if ear is not None:
            await ear.close()

    # -- commands -----------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        return submit_in_task(self.apply(commands), done)

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """Apply a batch by calling the brokers of its keys."""
        if not commands:
            return ()
        caller = self._calls()
        self._listings.note(commands)
        early = asked_to_hear(self._ears, commands)
        standing = unheeded(asyncio.gather(*(ear.stand() for ear in early)))
        try:
            replies: Sequence[Reply] = await caller.apply(commands)
            await standing
        finally:
            standing.cancel()
        waiting = waits_in_vain(self._ears, commands, replies)
        if waiting:
            replies = await self._again(caller, commands, replies, waiting)
        return replies

    async def apply_within(self, commands: Sequence[Command], seconds: float) -> Sequence[Reply]:
        """Likewise, or raise `BackendUnavailable` after so long."""
        try:
            async with asyncio.timeout(seconds):
                return await self.apply(commands)
        except TimeoutError:
            raise await self._calls().attendance.silence(commands[0].key, seconds) from None

    async def _again(
        self,
        caller: Caller,
        commands: Sequence[Command],
        replies: Sequence[Reply],
        waiting: Sequence[int],
    ) -> Sequence[Reply]:
        """These wait: let there be a mailbox, and ask again, as a push may have come before it."""
        for inbox in {inbox_of(commands[number]) for number in waiting}:
            await self._ears[inbox].stand()
        found = list(replies)
        again = await caller.apply([commands[number] for number in waiting])
        for number, reply in zip(waiting, again, strict=True):
            found[number] = reply
        return found

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return await self._listings.scan(
            self._connection, self._calls().apply, prefix, cursor, limit
        )

    async def examine(self) -> Sequence[Finding]:
        """Look at the server, and whether the queue is served."""
        return await examine(self._connection)

    # -- notifications ------------------------------------------------------------------------------

    async def subscribe(self, deliver: Deliver) -> None:
        """See `AsyncConnection`. The mailbox itself is made when somebody waits, and made again then."""
        self._deliver = deliver
        await self._connection.client()
        if self._ear is None:
            ear = self._ear = Ear(self._connection, self._hear)
            self.inbox = ear.inbox
            self._ears[ear.inbox] = ear

    def _hear(self, news: Sequence[Notification] | DibsError) -> None:
        if news:
            self._deliver(news)

    def after_fork(self) -> None:
        """In the child: nothing of the parent's is of use here, nor can it be thrown away."""
        keep_for_ever(self._caller, self._ear, self._deliver)
        self._reset()


def _to_nobody(_: object) -> None:
    """Nobody has subscribed."""


LOOK = timedelta(seconds=5)
PROBES = 5
PATIENCE = 5.0
SLOW = 0.5


async def examine(connection: Connection) -> list[Finding]:
    """Version and storage, and whether anybody runs brokers."""
    from temporalio.api.workflowservice.v1 import GetClusterInfoRequest
    from temporalio.service import RPCError

    client = await connection.client()
    try:
        about = await client.workflow_service.get_cluster_info(
            GetClusterInfoRequest(), timeout=LOOK
        )
    except RPCError as error:
        raise connection.explain(error) from error
    heard = sorted(ages(await polled(client, connection.settings.task_queue)))
    step = await _step(connection) if heard else None
    return [
        Finding("server", "ok", f"Temporal {about.server_version}, {connection.target}"),
        *([_latency(step)] if step is not None else []),
        *_storage(about.persistence_store),
        _worker(connection, heard, step),
        *await strays(client, connection.settings.task_queue),
    ]


async def _step(connection: Connection) -> float | None:
    """How long a broker takes to answer, at worst, in seconds; None if there is no answer.

    That some worker was heard of lately does not prove that it lives: a broker is started and asked.
    """
    from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
    from temporalio.service import RPCError

    client = await connection.client()
    broker = client.get_workflow_handle(ids.broker_id(PROBE))
    try:
        async with asyncio.timeout(PATIENCE):
            await _asked(connection)  # which starts it
            return max([await _asked(connection) for _ in range(PROBES)])
    except (TimeoutError, RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
        return None
    finally:
        with suppress(RPCError):  # it is not needed any more
            await broker.cancel(rpc_timeout=LOOK)


async def _asked(connection: Connection) -> float:
    began = time.monotonic()
    call = Update(connection, PROBE, [Inspect(PROBE)], None)
    call.starts = True
    await call.send(PATIENCE)
    return time.monotonic() - began


def _latency(step: float) -> Finding:
    """A renewal has a third of the ttl, and should have time for several tries in it."""
    least = max(20 * step, MIN_TTL)
    told = f"a broker answers in {step * 1e3:.0f} ms at worst of {PROBES}: use no ttl below {least:.1f} s"
    if step > SLOW:
        advice = "more workers, or ones nearer to the server, would keep leases through hiccups"
        return Finding("latency", "warning", told, advice)
    return Finding("latency", "ok", told)


def _storage(store: str) -> list[Finding]:
    """What is to be said beside the store's promises: they are of a server with a database."""
    if "sqlite" not in store.lower():
        return []
    told = "it is a development server: what it knows may be lost when it ends"
    advice = (
        "use a real one in production; here, start it with --db-filename if it was started without"
    )
    return [Finding("promises", "warning", told, advice)]


def _worker(connection: Connection, heard: list[float], step: float | None) -> Finding:
    """`heard`: how long ago each worker was, the last one first."""
    queue = connection.settings.task_queue
    if not heard:
        told = unserved(queue, ", so nothing can be granted")
        return Finding("worker", "problem", told, serve(queue))
    alive = [ago for ago in heard if ago < ALIVE]
    workers = "a worker serves" if len(alive) < 2 else f"{len(alive)} workers serve"
    told = f"{workers} the task queue {queue!r}, heard of {heard[0]:.0f} s ago"
    if not alive:
        told += " by this machine's clock"
    if step is None:
        told += f", but none has answered within {PATIENCE:.0f} s: they may have died since"
        return Finding("worker", "problem", told, serve(queue))
    if not alive:
        told += ": it answers, so this clock seems to be ahead of the server's"
        return Finding("worker", "warning", told, "have this machine's clock set by NTP")
    return Finding("worker", "ok", f"{told}; it answers")


MOST = 10_000
"""So many workflows are looked at, and …"""
QUEUES = 10
""" … so many queues."""


async def strays(client: "Client", known: str) -> list[Finding]:
    """A problem for each queue but the known one; nothing where the server's index can't be asked."""
    from temporalio.service import RPCError

    by_queue: Counter[str] = Counter()
    some: dict[str, str] = {}
    query = f"WorkflowType IN ('{ids.BROKER}', '{ids.PERMIT}') AND ExecutionStatus = 'Running'"
    try:
        async for run in client.list_workflows(query, page_size=1000, limit=MOST, rpc_timeout=LOOK):
            by_queue[run.task_queue] += 1
            some.setdefault(run.task_queue, run.id)
    except RPCError:
        return []
    del by_queue[known]
    return [
        _stray(queue, many, some[queue])
        for queue, many in by_queue.most_common(QUEUES)
        if not await _is_served(client, queue)
    ]


async def _is_served(client: "Client", queue: str) -> bool:
    try:
        return attended(await last_heard(client, queue)) != "no"
    except DibsError:
        return True  # not known


def _stray(queue: str, many: int, one: str) -> Finding:
    what = f"{one} is" if many == 1 else f"{many} brokers and permits, such as {one}, are"
    return Finding(
        "queues",
        "problem",
        f"{unserved(queue, f', and {what} on it')}: who wants what they keep waits in vain",
        f"{serve(queue)}; or, where nothing is held by them, end them with {terminate('ID')}",
    )
