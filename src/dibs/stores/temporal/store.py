"""The store of `temporal://` URLs: for each key a workflow, its broker, which runs the ledger."""

import asyncio
import secrets
import time
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from typing import Self
from weakref import WeakValueDictionary

from temporalio.api.workflowservice.v1 import GetClusterInfoRequest
from temporalio.client import Client

from dibs.clock import Clock
from dibs.core.codec import decode_notification
from dibs.errors import BackendUnavailable
from dibs.model import (
    Acquire,
    Capabilities,
    Command,
    Finding,
    Granted,
    Inspect,
    Page,
    Queued,
    Renew,
    Renewed,
    Reply,
    Status,
)
from dibs.process import on_fork
from dibs.stores.aio import submit_in_task
from dibs.stores.loop_thread import BlockingLoopConnection, LoopThread, keep_for_ever
from dibs.stores.port import BlockingConnection, Deliver, Done, GiveUp, Store, time_limit
from dibs.stores.temporal.client import LOOK, BrokerClient, pollers
from dibs.stores.temporal.errors import explained
from dibs.stores.temporal.ids import serve_hint, task_queue, unserved_message
from dibs.stores.temporal.url import TemporalSettings, TemporalTarget, read_url

TIMEOUT = 10.0
"""Seconds that a call can take at most; a call of leases with a short ttl has less."""

LEAST = 1.0
"""Seconds that every call has, since a broker may have to start."""

PAGE = 100
"""Keys that are inspected at a time."""

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
        self._use(BrokerClient(read_url(url)))

    @classmethod
    def from_client(cls, client: Client, *, clock: Clock | None = None) -> Self:
        """The store that uses a client of `temporalio`. Brokers' workers need its data converter."""
        shown = f"temporal://{TemporalTarget.of(client)}"
        store = cls.__new__(cls)
        store._use(BrokerClient(TemporalSettings(shown=shown, task_queue=task_queue()), client))
        return store

    def _use(self, brokers: BrokerClient) -> None:
        self.url: str = brokers.settings.shown
        self._brokers = brokers
        self._listening: WeakValueDictionary[str, AsyncTemporalConnection] = WeakValueDictionary()
        self._thread = LoopThread("dibs-temporal", self.url)

    def async_connection(self) -> "AsyncTemporalConnection":
        return AsyncTemporalConnection(self._brokers, self._listening)

    def blocking_connection(self) -> BlockingConnection:
        return BlockingLoopConnection(self._thread, self.async_connection)


class AsyncTemporalConnection:
    """See `AsyncConnection`: one event loop's way to the brokers.

    While it waits for a key, or holds it for long, a call of it blocks at the key's broker.
    """

    parallel = 16

    def __init__(
        self,
        brokers: BrokerClient,
        listening: MutableMapping[str, "AsyncTemporalConnection"],
    ) -> None:
        """`listening`: the store's connections that are subscribed, by inbox."""
        self.inbox: str = ""
        self._brokers = brokers
        self._listening = listening
        self._waits: dict[bytes, asyncio.Task[None]] = {}
        """By key, the task that waits at its broker."""
        self._asked: set[bytes] = set()
        """Keys that were asked for since their broker was last called."""
        on_fork(self)

    async def open(self) -> None:
        await self._brokers.client()

    async def close(self) -> None:
        self._listening.pop(self.inbox, None)
        self.inbox = ""
        self._stop_waiting()

    # -- commands -----------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        return submit_in_task(self._apply(commands, TIMEOUT), done)

    async def apply_within(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        """Apply a batch. Raises `BackendUnavailable` after `timeout` seconds, or before if ttls are short."""
        try:
            async with asyncio.timeout(max(timeout, LEAST)):
                return await self._apply(commands, timeout)
        except TimeoutError:
            raise BackendUnavailable(
                f"{self._brokers.target} did not answer within {timeout:.3g} s"
            ) from None

    async def _apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        limit = max((time_limit(command, timeout) for command in commands), default=0.0)
        # a little less, so that a caller who gives up then gets the reason
        replies = await self._brokers.apply(commands, 0.9 * max(limit, LEAST))
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(command, Acquire | Renew) and _is_to_wait(command, reply):
                receiver = self._listening.get(command.inbox)
                if receiver is not None:
                    receiver.wait_at(command.key)
        return replies

    # -- notifications ------------------------------------------------------------------------------

    async def subscribe(self, deliver: Deliver) -> None:
        await self._brokers.client()
        if not self.inbox:
            self._deliver = deliver
            self._loop = asyncio.get_running_loop()
            self.inbox = secrets.token_urlsafe(12)  # nobody can guess it
            self._listening[self.inbox] = self

    def wait_at(self, key: bytes) -> None:
        """Have the key's broker asked for notifications. Can be called from any thread."""
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._begin, key)

    def _begin(self, key: bytes) -> None:
        self._asked.add(key)
        if self.inbox and key not in self._waits:
            self._waits[key] = task = self._loop.create_task(self._wait(key))
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed

    async def _wait(self, key: bytes) -> None:
        """Call the key's broker until it has nothing of ours any more."""
        try:
            while True:
                self._asked.discard(key)
                found = await self._brokers.wait(key, self.inbox)
                if found.notifications:
                    news = found.notifications
                    self._deliver([decode_notification(each, key, self.inbox) for each in news])
                if found.again_in is None and key not in self._asked:
                    break
                await asyncio.sleep(found.again_in or 0.0)
        except Exception as error:  # noqa: BLE001 -- a converter's too: nobody else would see it
            self._stop_waiting()
            failure = BackendUnavailable(f"notifications may have been missed ({error})")
            failure.__cause__ = error
            self._deliver(failure)
        if self._waits.get(key) is asyncio.current_task():
            del self._waits[key]

    def _stop_waiting(self) -> None:
        waits, self._waits = self._waits, {}
        for task in waits.values():
            if task is not asyncio.current_task():
                task.cancel()

    # -- for people ---------------------------------------------------------------------------------

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        running = [key for key in await self._brokers.keys() if key.startswith(prefix)]
        keys = sorted(key for key in running if cursor is None or key > cursor)
        page = keys[: min(limit, PAGE)]
        replies = await self._brokers.apply([Inspect(key) for key in page], TIMEOUT)
        found = [each for each in replies if isinstance(each, Status)]
        items = [status for status in found if status.holders or status.waiters]
        return Page(items, page[-1] if len(page) < len(keys) else None)

    async def examine(self) -> Sequence[Finding]:
        """Version and storage, and whether a worker runs brokers."""
        client = await self._brokers.client()
        with explained(self._brokers.target):
            about = await client.workflow_service.get_cluster_info(
                GetClusterInfoRequest(), timeout=LOOK
            )
        told = f"Temporal {about.server_version}, {self._brokers.target}"
        found = [Finding("server", "ok", told)]
        if "sqlite" in about.persistence_store.lower():
            told = "it is a development server: what it knows may be lost when it ends"
            advice = "use a real one in production; here, start it with --db-filename"
            found.append(Finding("promises", "warning", told, advice))
        queue = self._brokers.settings.task_queue
        polled = await pollers(client, queue)
        ago = time.time() - max(polled.values(), default=0.0)
        if ago > ALIVE:
            told = unserved_message(queue, ", so nothing can be granted")
            return [*found, Finding("worker", "problem", told, serve_hint(queue))]
        told = f"a worker serves the task queue {queue!r}, heard of {max(ago, 0.0):.0f} s ago"
        return [*found, Finding("worker", "ok", told)]

    def after_fork(self) -> None:
        """In the child: nothing of the parent's is of use here, nor can it be taken apart."""
        keep_for_ever(self._waits)
        self._waits, self.inbox = {}, ""


def _is_to_wait(command: Acquire | Renew, reply: Reply) -> bool:
    """A waiter waits for its grant, and a holder for its revocation.

    A holder that was ready to queue begins with its first renewal: most release before.
    """
    if isinstance(command, Acquire) and isinstance(reply, Granted):
        return not command.queue
    return isinstance(reply, Queued | Renewed)
