"""The cells of an etcd: a key each, swapped by a transaction that compares its revision.

A transaction also writes the notifications.
"""

import logging
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any

from dibs.errors import DibsError
from dibs.model import Finding
from dibs.stores.cas.cells import Cell, Change, Receive, SwapConflict, TooLarge
from dibs.stores.cas.clock import StoreClock
from dibs.stores.cas.format import read_state, write_state
from dibs.stores.etcd.gateway import EtcdGateway, as_text
from dibs.stores.etcd.health import examine
from dibs.stores.etcd.inboxes import AT_ONCE, EtcdInboxes, end_of
from dibs.stores.etcd.url import EtcdSettings

log: logging.Logger = logging.getLogger("dibs")

MAX_SIZE, HARD_LIMIT = 800_000, 1_400_000
"""Bytes of a value to which an id is added, and of any value: etcd takes 1.5 MB in a transaction."""


class EtcdCells:
    """See `Cells`."""

    def __init__(self, settings: EtcdSettings, clock: StoreClock, now: Callable[[], float]) -> None:
        self._gateway = EtcdGateway(settings, clock, now)
        self._inboxes = EtcdInboxes(self._gateway)
        self._keys = settings.prefix + b"/keys/"

    async def open(self) -> None:
        await self._gateway.open()

    async def close(self) -> None:
        self.part()
        await self._inboxes.close()

    async def load(self, key: bytes) -> Cell:
        found = await self._gateway.call(
            b"/v3/kv/range", {"key": as_text(self._keys + key)}, repeatable=True
        )
        return self._cell(key, found.get("kvs") or ())

    def _cell(self, key: bytes, found: Sequence[Any]) -> Cell:
        if not found:
            return Cell(None, None)
        where = f"in etcd under the key {(self._keys + key).decode(errors='backslashreplace')}"
        state = read_state(b64decode(found[0].get("value", "")), where)
        return Cell(found[0]["mod_revision"], state, where)

    async def swap(self, key: bytes, version: Any, change: Change) -> Any:
        at = as_text(self._keys + key)
        writes: list[Any] = []
        if change.state is None:
            writes.append({"requestDeleteRange": {"key": at}})
        else:
            value = write_state(change.state)
            if len(value) > (MAX_SIZE if change.grows else HARD_LIMIT):
                raise TooLarge(f"{len(value)} bytes")
            writes.append({"requestPut": {"key": at, "value": as_text(value)}})
        puts = self._inboxes.puts(change.notifications) if change.notifications else []
        writes += puts[:AT_ONCE]
        compare = {"key": at, "target": "MOD", "result": "EQUAL", "mod_revision": version or "0"}
        request = {
            "compare": [compare],
            "success": writes,
            "failure": [{"requestRange": {"key": at}}],
        }
        found = await self._gateway.call(b"/v3/kv/txn", request, repeatable=False)
        if found.get("succeeded"):
            if len(puts) > AT_ONCE:
                await self._inboxes.put(puts[AT_ONCE:])
            return found["header"]["revision"]
        raise SwapConflict(
            self._cell(key, found["responses"][0]["response_range"].get("kvs") or ())
        )

    async def page(
        self, prefix: bytes, cursor: bytes | None, limit: int
    ) -> tuple[Sequence[tuple[bytes, Cell]], bytes | None]:
        first = self._keys + (prefix if cursor is None else max(prefix, cursor + b"\0"))
        request = {
            "key": as_text(first),
            "range_end": as_text(end_of(self._keys + prefix)),
            "limit": limit,
        }
        found = await self._gateway.call(b"/v3/kv/range", request, repeatable=True)
        cells, key = [], None
        for each in found.get("kvs") or ():
            key = b64decode(each["key"]).removeprefix(self._keys)
            try:
                cells.append((key, self._cell(key, [each])))
            except DibsError as error:  # one value that is no book is no reason to list none
                log.debug("left out of a list: %s", error)
        return cells, key if found.get("more") else None

    async def subscribe(self, inbox: str, receive: Receive) -> Callable[[], None]:
        return await self._inboxes.subscribe(inbox, receive)

    async def examine(self) -> Sequence[Finding]:
        gateway = self._gateway
        return await examine(gateway.settings, gateway.clients, gateway.request)

    def part(self) -> None:
        self._inboxes.part()
        self._gateway.part()

    def after_fork(self) -> None:
        self._gateway.after_fork()
