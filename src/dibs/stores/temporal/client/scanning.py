"""Listing what is in use: which brokers run is asked of the server's index, who holds what of each broker.

The index lags behind a little. So that whoever lists sees at least what it did itself, the keys that this
store has lately been asked about are looked at too.
"""

import logging
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from dibs.model import Acquire, Command, Inspect, Page, Reply, Status
from dibs.stores.temporal.client.connecting import Connection
from dibs.stores.temporal.client.updating import MEMO
from dibs.stores.temporal.protocol import ids, wire

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowExecution

log = logging.getLogger("dibs")

FRESH = 30.0
"""How long later pages go by what the first one found, and how far the index may lag, in seconds."""

CHUNK = 64
"""So many keys are inspected at a time."""

LATELY = 10_000
"""No more keys than this are remembered."""

type Apply = Callable[[Sequence[Command]], Awaitable[Sequence[Reply]]]


class Listings:
    """The sorted keys of scans that have begun, and the keys that were lately in use here."""

    MOST = 8

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[float, list[bytes]]] = {}
        self._lately: dict[bytes, float] = {}

    def note(self, commands: Iterable[Command]) -> None:
        """These keys may be in use now."""
        now, lately = time.monotonic(), self._lately
        for command in commands:
            if isinstance(command, Acquire):
                lately.pop(command.key, None)
                lately[command.key] = now
        while len(lately) > LATELY:
            lately.pop(next(iter(lately)), None)

    async def scan(
        self,
        connection: Connection,
        apply: Apply,
        prefix: bytes,
        cursor: bytes | None,
        limit: int,
    ) -> Page:
        """The next keys that are held or waited for, in the order of their bytes."""
        keys = None if cursor is None else self._find(prefix)
        if keys is None:
            running = await _running(connection, prefix)
            keys = sorted(running | self._recent(prefix))
            self._keep(prefix, keys)
        if cursor is not None:
            keys = keys[bisect_right(keys, cursor) :]
        items: list[Status] = []
        done = 0
        while done < len(keys) and len(items) < limit:
            chunk = keys[done : done + min(CHUNK, limit - len(items))]
            replies = await apply([Inspect(key) for key in chunk])
            found = (each for each in replies if isinstance(each, Status))
            items += [status for status in found if status.holders or status.waiters]
            done += len(chunk)
        return Page(items, keys[done - 1] if done < len(keys) else None)

    def _recent(self, prefix: bytes) -> set[bytes]:
        since = time.monotonic() - FRESH
        known = list(self._lately.items())
        return {key for key, when in known if when > since and key.startswith(prefix)}

    def _find(self, prefix: bytes) -> list[bytes] | None:
        began, keys = self._kept.get(prefix, (0.0, []))
        return keys if keys and time.monotonic() - began < FRESH else None

    def _keep(self, prefix: bytes, keys: list[bytes]) -> None:
        self._kept.pop(prefix, None)
        self._kept[prefix] = (time.monotonic(), keys)
        while len(self._kept) > self.MOST:
            self._kept.pop(next(iter(self._kept)), None)


async def _running(connection: Connection, prefix: bytes) -> set[bytes]:
    """The keys of all brokers that run, as far as the index knows."""
    from temporalio.service import RPCError

    client = await connection.client()
    query = f"WorkflowType = '{ids.BROKER}' AND ExecutionStatus = 'Running'"
    found = set()
    try:
        async for run in client.list_workflows(query, page_size=1000):
            key = ids.key_of(run.id)
            if key is None:
                key = await _hashed(client, run)
            if key is not None and key.startswith(prefix):
                found.add(key)
    except RPCError as error:
        raise connection.explain(error) from error
    return found


async def _hashed(client: "Client", run: "WorkflowExecution") -> bytes | None:
    """The key of a broker whose ID has but a hash; None where only others can read it."""
    from temporalio.service import RPCError

    try:
        text = await _told_at_start(client, run)
        return wire.bytes_of(text) if text else None
    except RPCError:
        raise
    except Exception as error:  # noqa: BLE001 -- of a data converter that isn't the one it was written by
        log.warning("%s isn't listed, as its name can't be read: %s", run.id, error)
        return None


async def _told_at_start(client: "Client", run: "WorkflowExecution") -> str:
    """Our memo, else what its run began with."""
    text: str = await run.memo_value(MEMO, "", type_hint=str)
    if text:
        return text
    handle = client.get_workflow_handle(run.id, run_id=run.run_id)
    async for event in handle.fetch_history_events(page_size=1):
        payloads = event.workflow_execution_started_event_attributes.input.payloads
        (given,) = await client.data_converter.decode(payloads, [wire.BrokerInput])
        return str(given.key)
    return ""
