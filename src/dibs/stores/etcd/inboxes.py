"""Notifications in etcd: one key for each inbox, which its client watches."""

import asyncio
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import batched
from typing import Any

import msgspec

from dibs.core.codec import decode_notification, encode
from dibs.errors import DibsError
from dibs.model import Notification
from dibs.stores.cas.cells import Receive
from dibs.stores.etcd.gateway import EtcdGateway, as_text

KEEP_INBOX = 3600
"""Seconds after its last write at which an inbox is deleted."""

AT_ONCE = 100
"""Inboxes that are written or deleted by one transaction: etcd takes 128 operations."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class EtcdInboxes:
    """The inboxes of all clients."""

    def __init__(self, gateway: EtcdGateway) -> None:
        self._gateway = gateway
        self._prefix = gateway.settings.prefix + b"/inboxes/"
        self._sweep: asyncio.Task[None] | None = None

    def puts(self, notifications: Sequence[Notification]) -> list[dict[str, Any]]:
        """Operations that write notifications: one for each inbox, since a transaction puts a key once."""
        inboxes: dict[str, list[Any]] = {}
        for each in notifications:
            inboxes.setdefault(each.inbox, []).append([as_text(each.key), encode(each)])
        at = int(time.time())
        return [
            {
                "requestPut": {
                    "key": as_text(self._prefix + inbox.encode()),
                    "value": as_text(_encode({"at": at, "notifications": said})),
                }
            }
            for inbox, said in inboxes.items()
        ]

    async def put(self, puts: Sequence[dict[str, Any]]) -> None:
        """Write those that did not fit into the transaction of a swap. A lost one only costs time."""
        with suppress(DibsError):
            for part in batched(puts, AT_ONCE):
                await self._gateway.call(b"/v3/kv/txn", {"success": part}, repeatable=False)

    async def subscribe(self, inbox: str, receive: Receive) -> Callable[[], None]:
        """See `Cells`."""

        def changed(kv: Any) -> None:
            receive(_notifications(kv, inbox))

        end = await self._gateway.watch(self._prefix + inbox.encode(), changed, receive)
        if self._sweep is None or self._sweep.done():
            self._sweep = asyncio.get_running_loop().create_task(self._sweep_old())
        return end

    async def _sweep_old(self) -> None:
        """Delete some of the inboxes with the oldest last write.

        If one of them is written at the same time, none is deleted now.
        """
        request = {
            "key": as_text(self._prefix),
            "range_end": as_text(end_of(self._prefix)),
            "limit": AT_ONCE,
            "sort_order": "ASCEND",
            "sort_target": "MOD",
        }
        with suppress(DibsError):  # it is left for another time
            found = await self._gateway.call(b"/v3/kv/range", request, repeatable=True)
            long_ago = time.time() - KEEP_INBOX
            old = [each for each in found.get("kvs") or () if _written_at(each) < long_ago]
            if old:
                await self._gateway.call(b"/v3/kv/txn", _deletion(old), repeatable=False)

    def part(self) -> None:
        """End what goes on in the background."""
        if self._sweep is not None:
            self._sweep.cancel()

    async def close(self) -> None:
        """Wait until that has ended."""
        if self._sweep is not None:
            await asyncio.wait([self._sweep])


def _notifications(kv: Any, inbox: str) -> list[Notification]:
    """The notifications in an inbox; none if its value has another form."""
    try:
        said = _decode(b64decode(kv.get("value", "")))["notifications"]
        return [decode_notification(fields, b64decode(key), inbox) for key, fields in said]
    except (ValueError, TypeError, LookupError, msgspec.MsgspecError):
        return []


def _deletion(found: Sequence[Any]) -> Any:
    """The transaction that deletes these keys, unless one of them was written since it was read."""
    return {
        "compare": [
            {
                "key": each["key"],
                "target": "MOD",
                "result": "EQUAL",
                "mod_revision": each["mod_revision"],
            }
            for each in found
        ],
        "success": [{"requestDeleteRange": {"key": each["key"]}} for each in found],
    }


def _written_at(kv: Any) -> float:
    try:
        return float(_decode(b64decode(kv.get("value", "")))["at"])
    except (ValueError, TypeError, LookupError, msgspec.MsgspecError):
        return 0.0


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`, which ends with no 0xff here."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1])
