"""The store of `temporal://` URLs: for each key a workflow, its broker, which runs the ledger."""

import asyncio
import logging
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

import temporalio as temporalio  # so that it is told at once if it is missing

from dibs.clock import Clock
from dibs.core.codec import decode_notification
from dibs.core.names import PROBE
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import (
    Acquire,
    Capabilities,
    Command,
    Finding,
    Granted,
    Inspect,
    Lost,
    Page,
    Queued,
    Release,
    Renew,
    Renewed,
    Reply,
    Status,
)
from dibs.process import on_fork
from dibs.stores.aio import submit_in_task
from dibs.stores.loop_thread import BlockingLoopConnection, LoopThread, keep_for_ever
from dibs.stores.port import BlockingConnection, Deliver, Done, GiveUp, Store
from dibs.stores.temporal import client as calls
from dibs.stores.temporal import ids, wire
from dibs.stores.temporal.client import BrokerClient, TemporalConnection, pollers, rest_at_exit
from dibs.stores.temporal.errors import is_passing
from dibs.stores.temporal.ids import serve_hint, task_queue, unserved_message
from dibs.stores.temporal.url import TemporalSettings, TemporalTarget, read_url
from dibs.stores.temporal.wire import BLOCKED

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecution

log: logging.Logger = logging.getLogger("dibs")

STARTS = 3.0
"""Seconds that connecting, and the start of a broker, can take on a busy machine."""

LEAST_TURN = 0.04
"""The shortest hold, in seconds, that waiters far back in the queue reckon with."""

MAX_FAR_BACK_PAUSE = 5.0
"""Seconds of their longest pause before they ask the broker again."""

JUST_NOW = 0.1
"""Seconds. A key that was asked for so lately may not have been when its broker answered that we are done."""

FRESH = 30.0
"""Seconds for which later pages use what the first one found, and by which the server's index can lag."""

MOST_FAILURES = 5
"""In a row, after which those who wait are told that they may have missed something."""

CHUNK = 64
"""Keys that are inspected at a time."""

LATELY = 10_000
"""Keys in recent use that are remembered."""

PROBE_TIMEOUT = 5.0
"""Seconds that a broker has to answer `dibs doctor`."""

ALIVE = 90.0
"""Seconds. A worker asks for work about once a minute: later it is gone, or our clock is off."""


class TemporalStore(Store):
    """Leases in a namespace of a Temporal server: for each key a workflow, its broker.

    A worker must run the brokers: `dibs temporal worker`, or one of yours with `DibsPlugin`.

    | URL | |
    |---|---|
    | `temporal://host:7233/namespace` | that server and namespace |
    | `temporal://` | what `TEMPORAL_ADDRESS` and `TEMPORAL_NAMESPACE` say, or Temporal's settings file |
    | `temporal://?profile=prod` | another profile of that file, with its address, API key and TLS |

    Options: `task_queue` (else `TEMPORAL_TASK_QUEUE`, else `distributed-lock-tq`), `profile`, `api_key`
    (better `TEMPORAL_API_KEY`), `tls=true|false`. Temporal's own variables name certificates and another
    settings file: `TEMPORAL_TLS_*` and `TEMPORAL_CONFIG_FILE`.

    A profile of the file is used where the URL names no host, or names the profile: an API key that is kept
    there is not sent elsewhere. The brokers go by their own clock.
    """

    capabilities: Capabilities = Capabilities(
        scope="cluster", durable=True, survives=frozenset({"crash", "reboot", "power-loss"})
    )

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._use(read_url(url))

    @classmethod
    def from_client(cls, client: Any, *, clock: Clock | None = None) -> Self:
        """The store that a `temporalio.client.Client` is connected to.

        Takes its settings and its data converter, which brokers' workers must have too, for a connection of
        its own.
        """
        config = client.service_client.config
        names = ("api_key", "tls", "rpc_metadata", "keep_alive_config", "http_connect_proxy_config")
        options = {name: getattr(config, name) for name in names}
        target = TemporalTarget(
            address=config.target_host,
            namespace=client.namespace,
            options={**options, "data_converter": client.data_converter},
        )
        store = cls.__new__(cls)
        shown = f"temporal://{target}"
        store._use(TemporalSettings(shown=shown, task_queue=task_queue(), given=target))
        return store

    def _use(self, settings: TemporalSettings) -> None:
        self.url: str = settings.shown
        self._connection = TemporalConnection(settings)
        self._listing = Listing(self._connection)
        self._inboxes: WeakValueDictionary[str, Inbox] = WeakValueDictionary()
        self._thread = LoopThread("dibs-temporal", self.url, self._new_calls, rest_at_exit)

    def _new_calls(self) -> BrokerClient:
        return BrokerClient(self._connection)

    def async_connection(self) -> "AsyncTemporalConnection":
        return self._connected(self._new_calls)

    def blocking_connection(self) -> BlockingConnection:
        def inner() -> AsyncTemporalConnection:
            return self._connected(self._thread.shared)

        return BlockingLoopConnection(self._thread, inner, least_timeout=STARTS)

    def _connected(self, new_calls: Callable[[], BrokerClient]) -> "AsyncTemporalConnection":
        return AsyncTemporalConnection(self._connection, self._listing, self._inboxes, new_calls)


class Inbox:
    """One connection's notifications. While it waits for a key, or holds it for long, a call blocks there.

    Used in its own loop; `wait_at` can be called from any thread.
    """

    def __init__(self, calls: BrokerClient, deliver: Deliver) -> None:
        self.name: str = secrets.token_urlsafe(12)
        """Nobody can guess it, so nobody else gets what is for us."""
        self._calls = calls
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._waits: dict[bytes, asyncio.Task[None]] = {}
        self._asked: dict[bytes, float] = {}
        """When each of these keys was last asked for."""
        self._far_back: dict[bytes, asyncio.Event] = {}
        """Keys in whose queues we are far back, with an event that ends the pause before the next call."""

    def wait_at(self, key: bytes, position: int) -> None:
        """Have the key's broker asked for notifications, until it has none for this inbox any more."""
        self._asked[key] = time.monotonic()
        if key not in self._waits or (key in self._far_back and position < BLOCKED):
            with suppress(RuntimeError):  # its loop is closed, and whoever listened has gone
                self._loop.call_soon_threadsafe(self._begin, key, position)

    def _begin(self, key: bytes, position: int) -> None:
        if key in self._far_back and position < BLOCKED:
            self._far_back[key].set()
        if self.name and key not in self._waits:
            self._waits[key] = task = self._loop.create_task(self._wait(key, position))
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed

    async def _pause(self, key: bytes, seconds: float) -> None:
        """Pause, until a heartbeat says that we are not far back any more."""
        is_in_front = self._far_back[key] = asyncio.Event()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await is_in_front.wait()
        finally:
            del self._far_back[key]

    async def _wait(self, key: bytes, position: int) -> None:
        me, after, failures = asyncio.current_task(), 0, 0
        await self._pause(key, _far_back_pause(position - BLOCKED + 1, 0.0))
        while self._waits.get(key) is me:
            try:
                found = await self._calls.wait(key, self.name, after)
                news = [decode_notification(each, key, self.name) for each in found.notifications]
            except Exception as error:  # noqa: BLE001 -- a converter's too: nobody else would see it
                failures += 1
                if failures > MOST_FAILURES or not _is_passing(error):
                    self._fail(key, error)
                    return
                await asyncio.sleep(0.05)  # the broker's run has just ended
                continue
            if self._waits.get(key) is me and news:
                self._deliver(news)
            after, failures = found.upto, 0
            if found.ahead is not None:
                await self._pause(key, _far_back_pause(found.ahead, found.turn))
            elif time.monotonic() - self._asked[key] > JUST_NOW:
                break
        if self._waits.get(key) is me:
            del self._waits[key], self._asked[key]

    def _fail(self, key: bytes, error: Exception) -> None:
        """Tell the waiters once that they have to ask, whatever their key."""
        if self._waits.get(key) is asyncio.current_task():
            self.cancel()
            failure = BackendUnavailable(f"notifications may have been missed ({error})")
            failure.__cause__ = error
            self._deliver(failure)

    def cancel(self) -> None:
        """Ask no broker any more."""
        waits, self._waits, self._asked = self._waits, {}, {}
        for task in waits.values():
            if task is not asyncio.current_task():
                task.cancel()

    def close(self) -> None:
        """Likewise, for good."""
        self.name = ""
        self.cancel()


def _far_back_pause(ahead: int, turn: float) -> float:
    """Seconds until a waiter far back asks again: half of what the waiters ahead of it should take."""
    return min(max(ahead, 0) * max(turn, LEAST_TURN) / 2, MAX_FAR_BACK_PAUSE)


def _is_passing(error: Exception) -> bool:
    from temporalio.service import RPCError

    return isinstance(error, RPCError) and is_passing(error)


class AsyncTemporalConnection:
    """See `AsyncConnection`: one event loop's way to the brokers."""

    parallel = calls.PARALLEL

    def __init__(
        self,
        connection: TemporalConnection,
        listing: "Listing",
        inboxes: MutableMapping[str, Inbox],
        new_calls: Callable[[], BrokerClient],
    ) -> None:
        self._connection = connection
        self._listing = listing
        self._inboxes = inboxes
        self._new_calls = new_calls
        self._calls: BrokerClient | None = None
        self._inbox: Inbox | None = None
        on_fork(self)

    @property
    def inbox(self) -> str:
        return "" if self._inbox is None else self._inbox.name

    def _opened(self) -> BrokerClient:
        if self._calls is None:
            self._calls = self._new_calls()
            calls.prepare()
        return self._calls

    async def open(self) -> None:
        """Connect to nothing yet: the first call raises if that fails, and has a limit for it."""
        self._opened()

    async def close(self) -> None:
        self._calls = None  # what is on its way goes on
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            self._inboxes.pop(inbox.name, None)
            inbox.close()

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        return submit_in_task(self.apply(commands), done)

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """Apply a batch by calling the brokers of its keys."""
        if not commands:
            return ()
        self._listing.note(commands)
        replies = await self._opened().apply(commands)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(command, Acquire | Renew) and _is_to_wait(command, reply):
                inbox = self._inboxes.get(command.inbox)
                if inbox is not None:
                    inbox.wait_at(command.key, reply.position if isinstance(reply, Queued) else 0)
        return replies

    async def apply_within(self, commands: Sequence[Command], seconds: float) -> Sequence[Reply]:
        """Likewise, or raise `BackendUnavailable` after so long."""
        try:
            async with asyncio.timeout(seconds):
                return await self.apply(commands)
        except TimeoutError:
            raise await self._opened().silence(commands[0].key, seconds) from None

    async def subscribe(self, deliver: Deliver) -> None:
        await self._connection.client()
        if self._inbox is None:
            self._inbox = Inbox(self._opened(), deliver)
            self._inboxes[self._inbox.name] = self._inbox

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return await self._listing.page(self._opened(), prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        """Check the server, and that a worker serves the queue."""
        return await examine(self._connection, self._opened())

    def after_fork(self) -> None:
        """In the child: nothing of the parent's is of use here, nor can it be taken apart."""
        keep_for_ever(self._calls, self._inbox)
        self._calls = self._inbox = None


def _is_to_wait(command: Acquire | Renew, reply: Reply) -> bool:
    """A waiter waits for its grant, and a holder for its revocation.

    A holder that was ready to queue begins with its first renewal: most release before.
    """
    if isinstance(reply, Queued):
        return True
    if isinstance(command, Renew):
        return isinstance(reply, Renewed | Lost)
    return isinstance(reply, Granted) and not command.queue


class Listing:
    """Keys in use: the server's index knows which brokers run, and each broker who holds what.

    The index lags behind. So that a client lists at least what it did itself, the keys that this store was
    lately asked about are inspected too.
    """

    def __init__(self, connection: TemporalConnection) -> None:
        self._connection = connection
        self._found: tuple[bytes, float, list[bytes]] = (b"", 0.0, [])
        """Prefix, time and keys of the last listing that began."""
        self._lately: dict[bytes, float] = {}

    def note(self, commands: Sequence[Command]) -> None:
        """These keys may be in use now."""
        for command in commands:
            if isinstance(command, Acquire):
                self._lately.pop(command.key, None)
                self._lately[command.key] = time.monotonic()
        while len(self._lately) > LATELY:
            self._lately.pop(next(iter(self._lately)), None)

    async def page(
        self, calls: BrokerClient, prefix: bytes, cursor: bytes | None, limit: int
    ) -> Page:
        """The next keys that are held or waited for, in the order of their bytes."""
        of, began, keys = self._found
        if cursor is None or of != prefix or time.monotonic() - began > FRESH:
            keys = sorted(await self._running(prefix) | self._recent(prefix))
            self._found = prefix, time.monotonic(), keys
        if cursor is not None:
            keys = keys[bisect_right(keys, cursor) :]
        items: list[Status] = []
        done = 0
        while done < len(keys) and len(items) < limit:
            chunk = keys[done : done + min(CHUNK, limit - len(items))]
            replies = await calls.apply([Inspect(key) for key in chunk])
            found = (each for each in replies if isinstance(each, Status))
            items += [status for status in found if status.holders or status.waiters]
            done += len(chunk)
        return Page(items, keys[done - 1] if done < len(keys) else None)

    def _recent(self, prefix: bytes) -> set[bytes]:
        since = time.monotonic() - FRESH
        lately = list(self._lately.items())
        return {key for key, when in lately if when > since and key.startswith(prefix)}

    async def _running(self, prefix: bytes) -> set[bytes]:
        from temporalio.service import RPCError

        client = await self._connection.client()
        query = f"WorkflowType = '{ids.BROKER}' AND ExecutionStatus = 'Running'"
        found = set()
        try:
            async for run in client.list_workflows(query, page_size=1000):
                key = ids.key_of(run.id) or await _key_in_memo(run)
                if key and key.startswith(prefix):
                    found.add(key)
        except RPCError as error:
            raise self._connection.explain(error) from error
        return found


async def _key_in_memo(run: "WorkflowExecution") -> bytes:
    """The key of a broker whose ID has only a hash; empty if it cannot be read."""
    try:
        key = wire.bytes_of(await run.memo_value(ids.MEMO, "", type_hint=str))
        if ids.broker_id(key) != run.id:
            raise ValueError("its memo names another key")
        return key
    except Exception as error:  # noqa: BLE001 -- of another data converter than it was written by
        log.warning("%s isn't listed, as its name can't be read: %s", run.id, error)
        return b""


async def examine(connection: TemporalConnection, brokers: BrokerClient) -> list[Finding]:
    """Version and storage, and whether a worker runs brokers."""
    from temporalio.api.workflowservice.v1 import GetClusterInfoRequest
    from temporalio.service import RPCError

    client = await connection.client()
    try:
        about = await client.workflow_service.get_cluster_info(
            GetClusterInfoRequest(), timeout=calls.LOOK
        )
    except RPCError as error:
        raise connection.explain(error) from error
    found = [Finding("server", "ok", f"Temporal {about.server_version}, {connection.target}")]
    if "sqlite" in about.persistence_store.lower():
        told = "it is a development server: what it knows may be lost when it ends"
        advice = "use a real one in production; here, start it with --db-filename"
        found.append(Finding("promises", "warning", told, advice))
    queue = connection.settings.task_queue
    polled = await pollers(client, queue)
    found.append(await _worker(brokers, queue, list(polled.values())))
    return found


async def _worker(brokers: BrokerClient, queue: str, polled: list[float]) -> Finding:
    """That a worker was heard of does not prove that it lives, so a broker is asked."""
    if not polled:
        told = unserved_message(queue, ", so nothing can be granted")
        return Finding("worker", "problem", told, serve_hint(queue))
    ages = sorted(max(time.time() - each, 0.0) for each in polled)
    alive = [ago for ago in ages if ago < ALIVE]
    workers = "a worker serves" if len(alive) < 2 else f"{len(alive)} workers serve"
    told = f"{workers} the task queue {queue!r}, heard of {ages[0]:.0f} s ago"
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            key = PROBE + b"/" + queue.encode()  # its broker is on this queue, then
            await brokers.apply([Release(key, secrets.token_urlsafe(18), tombstone=1.0)])
    except (TimeoutError, DibsError):
        told += f", but none has answered within {PROBE_TIMEOUT:.0f} s: they may have died since"
        return Finding("worker", "problem", told, serve_hint(queue))
    if not alive:
        told += ": it answers, so this machine's clock seems to be ahead of the server's"
        return Finding("worker", "warning", told, "have this machine's clock set by NTP")
    return Finding("worker", "ok", f"{told}; it answers")
