"""The cells of a Kubernetes cluster: a Lease each, swapped by its resourceVersion.

Each client watches the Leases that have its inbox as a label: those with notifications for it, and contended
ones that it will write next.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from dibs.core.names import PROBE
from dibs.errors import DibsError
from dibs.model import Finding
from dibs.stores.cas.cells import Cell, Change, Receive, SwapConflict, TooLarge
from dibs.stores.cas.clock import StoreClock
from dibs.stores.kubernetes.access import Access
from dibs.stores.kubernetes.api import KubernetesApi, details_of, message_of
from dibs.stores.kubernetes.health import examine
from dibs.stores.kubernetes.objects import (
    BOOK,
    KIND,
    MANAGED_BY,
    is_later,
    kind_label,
    lease_name,
    read_lease,
    true_key,
    write_lease,
)
from dibs.stores.kubernetes.watch import LeaseWatch

LISTED = 250
"""Leases that the server lists at a time."""

log: logging.Logger = logging.getLogger("dibs")


class KubernetesCells:
    """See `Cells`."""

    def __init__(
        self,
        shown: str,
        access: Access,
        clock: StoreClock,
        now: Callable[[], float],
        known: dict[bytes, Cell],
    ) -> None:
        """`known`: the cells that this process knows. Watches bring newer ones."""
        self.api: KubernetesApi = KubernetesApi(shown, access, clock, now)
        self._known = known
        self._watches: set[LeaseWatch] = set()

    # -- cells --------------------------------------------------------------------------------------

    async def open(self) -> None:
        self.api.client.part(parting=False)
        await self.load(PROBE)

    async def close(self) -> None:
        self.part()

    async def load(self, key: bytes) -> Cell:
        answer = await self.api.request("GET", f"{self.api.leases}/{lease_name(key)}")
        if answer.status == HTTPStatus.OK:
            return read_lease(key, self.api.read(answer))
        if answer.status == HTTPStatus.NOT_FOUND and details_of(answer).get("kind") == "leases":
            return Cell(None, None)
        raise self.api.problem(answer, "get")

    async def swap(self, key: bytes, version: Any, change: Change) -> Any:
        if change.state is None:
            return await self._delete(key, version)
        new = write_lease(key, self.api.access.namespace, version, change)
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": new.metadata,
            "spec": new.spec,
        }
        if version is None:
            answer = await self.api.request("POST", self.api.leases, lease)
        else:
            answer = await self.api.request("PUT", f"{self.api.leases}/{lease_name(key)}", lease)
        if answer.status < HTTPStatus.MULTIPLE_CHOICES:
            if version is None:  # the server and its webhooks have put more into it, which stays
                return read_lease(key, self.api.read(answer)).version
            del new.metadata["annotations"][BOOK]
            new.metadata["resourceVersion"] = self.api.read_version(answer)
            return new
        if answer.status == HTTPStatus.CONFLICT or (version and answer.status == 404):
            raise SwapConflict
        if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise TooLarge(message_of(answer))
        raise self.api.problem(answer, "create" if version is None else "update")

    async def _delete(self, key: bytes, version: Any) -> None:
        """Delete a Lease. Raises `SwapConflict` also if another program made it: then it stays."""
        if version is None:
            return
        metadata = version.metadata
        if (metadata.get("labels") or {}).get(MANAGED_BY) != "dibs":
            raise SwapConflict
        same = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        answer = await self.api.request(
            "DELETE", f"{self.api.leases}/{lease_name(key)}", {"preconditions": same}
        )
        if answer.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
            raise SwapConflict
        if answer.status != HTTPStatus.OK:
            raise self.api.problem(answer, "delete")

    async def page(
        self, prefix: bytes, cursor: bytes | None, limit: int
    ) -> tuple[Sequence[tuple[bytes, Cell]], bytes | None]:
        """The server lists in the order of its names, so each page goes through all of them.

        Leases that cannot be read are left out.
        """
        found: list[tuple[bytes, Any]] = []
        has_more = False
        async for lease in self._list(f"{KIND}={kind_label(prefix)}" if b":" in prefix else KIND):
            key = true_key(lease)
            if key is None or not key.startswith(prefix) or (cursor is not None and key <= cursor):
                continue
            if lease["metadata"]["name"] != lease_name(key):  # a copy, made by hand
                continue
            found.append((key, lease))
            if len(found) > limit + LISTED:
                found, has_more = _first(found, limit), True
        has_more = has_more or len(found) > limit
        found = _first(found, limit)
        cells = []
        for key, lease in found:
            try:
                cells.append((key, read_lease(key, lease)))
            except DibsError as error:
                log.debug("left out of the list: %s", error)
        return cells, found[-1][0] if has_more and found else None

    async def _list(self, selector: str) -> AsyncIterator[Any]:
        query = f"{self.api.leases}?labelSelector={quote(selector)}&limit={LISTED}"
        token = ""
        while True:
            answer = await self.api.request("GET", f"{query}&continue={token}")
            if answer.status != HTTPStatus.OK:
                raise self.api.problem(answer, "list")
            listed = self.api.read(answer)
            for each in listed["items"]:
                yield each
            token = quote(listed["metadata"].get("continue") or "")
            if not token:
                return

    # -- the rest -----------------------------------------------------------------------------------

    async def subscribe(self, inbox: str, receive: Receive) -> Callable[[], None]:
        watch = LeaseWatch(self.api, inbox, receive, self._saw)
        await watch.begin()
        self._watches = {each for each in self._watches if not each.ended} | {watch}

        def end() -> None:
            self._watches.discard(watch)
            watch.end()

        return end

    def _saw(self, lease: dict[str, Any]) -> None:
        """Remember a Lease from a watch, so that the next swap need not load it."""
        key = true_key(lease)
        if key is None or lease["metadata"]["name"] != lease_name(key):
            return
        with suppress(DibsError):  # `load` raises it
            cell, known = read_lease(key, lease), self._known.get(key)
            if known is None or not known.version or is_later(cell.version, known.version):
                self._known[key] = cell

    async def examine(self) -> Sequence[Finding]:
        return await examine(self.api)

    def part(self) -> None:
        for watch in self._watches:
            watch.end()
        self._watches.clear()
        self.api.client.part()

    def after_fork(self) -> None:
        self.api.client.close_in_child()


def _first(found: list[tuple[bytes, Any]], limit: int) -> list[tuple[bytes, Any]]:
    return sorted(found, key=lambda each: each[0])[:limit]
