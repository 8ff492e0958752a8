"""The cells of a Kubernetes cluster: a Lease each, swapped by its resourceVersion.

Plain REST: four verbs do not pay for a client library. Each client watches the Leases that have its inbox
as a label: those with notifications for it, and contended ones that it will write next.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec

from dibs.core.names import PROBE
from dibs.errors import BackendUnavailable, DibsError, Forbidden, InvalidRequest, NotConfigured
from dibs.model import Finding
from dibs.stores.cas.cells import Cell, Change, Receive, SwapConflict, TooLarge
from dibs.stores.cas.clock import StoreClock
from dibs.stores.kubernetes.access import Access
from dibs.stores.kubernetes.answers import details_of, is_refusal, message_of
from dibs.stores.kubernetes.health import examine
from dibs.stores.kubernetes.objects import (
    INBOX,
    KIND,
    MANAGED_BY,
    is_later,
    kind_label,
    lease_name,
    read_lease,
    true_key,
    write_lease,
    written,
)
from dibs.stores.kubernetes.watch import LeaseWatch
from dibs.stores.web.client import NotConnected, WebClient
from dibs.stores.web.reading import NotHttp, Response

MAX_IDLE = 32
"""Connections that are kept for the next requests."""

LISTED = 250
"""Leases that the server lists at a time."""

RETRY_AFTER = 1.0
"""Seconds after which a busy server is asked again, if it does not tell."""

BUSY = 1.0
"""Seconds without any answer but 429 after which requests fail."""

RBAC = "allow get, create, update, delete, list and watch on leases: deploy/kubernetes-rbac.yaml"

log = logging.getLogger("dibs")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


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
        self.shown = shown
        self._known = known
        self.access = access
        self._clock = clock
        self._now = now
        self._watches: set[LeaseWatch] = set()
        self._busy_since: float | None = None
        """When the first 429 came after which there was no other answer."""
        group = f"{access.prefix}/apis/coordination.k8s.io/v1"
        self.leases = f"{group}/namespaces/{quote(access.namespace)}/leases"

    @cached_property
    def client(self) -> WebClient:
        access = self.access
        through = access.proxy if access.server.scheme == "https" else None
        return WebClient(
            access.endpoint,
            self._now,
            self._clock.note,
            MAX_IDLE,
            tunnel=None if through is None else through.tunnel,
            server_name=access.server_name,
        )

    # -- calls --------------------------------------------------------------------------------------

    def headers(self, token: bytes) -> bytes:
        """What each request says of us."""
        access = self.access
        proxied = access.proxy.header if access.proxy and access.server.scheme == "http" else b""
        return b"accept: application/json\r\nuser-agent: dibs\r\n%b%b" % (token, proxied)

    async def request(self, method: str, path: str, body: object = None) -> Response:
        """Send a request, again if the server is busy, and once more with new credentials after a 401.

        Raises `BackendUnavailable` if there is no answer, or if the server is still busy.
        """
        said = b"" if body is None else _encode(body)
        is_new, may_repeat = False, method == "GET"
        while True:
            token = await self.access.credentials.header()
            headers = self.headers(token)
            try:
                answer = await self.client.request(method.encode(), path.encode(), headers, said)
            except NotConnected as error:
                raise self.unreachable(error) from error
            except (OSError, NotHttp) as error:
                if not may_repeat:  # perhaps the server has closed the connection meanwhile
                    raise self._hung_up(error) from error
                may_repeat = False
                continue
            if answer.status != HTTPStatus.TOO_MANY_REQUESTS:
                self._busy_since = None
            if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
                if self._is_busy_for_long():
                    raise self._busy(answer)
                await asyncio.sleep(_retry_after(answer) * random.uniform(1, 1.5))  # noqa: S311
            elif (
                answer.status == HTTPStatus.UNAUTHORIZED
                and not is_new
                and self.access.credentials.renew(token)
            ):
                is_new = True
                self.client.leave()  # a plugin may make another client certificate
            else:
                return answer

    def unreachable(self, error: Exception) -> DibsError:
        """The error for a server to which no connection can be made."""
        return BackendUnavailable(
            f"{self.shown}: {self.access.server.netloc} can't be reached: {error}; check the cluster and "
            f"{self.access.source}"
        )

    def _hung_up(self, error: Exception) -> DibsError:
        """The error for a connection that ended before the answer, as it also does if a server wants another
        client certificate.
        """
        told = f"{self.shown}: the API server hung up: {error}"
        if self.access.server.scheme == "https":
            told += f"; if it always does, check the client certificate of {self.access.source}"
        return BackendUnavailable(told)

    def _is_busy_for_long(self) -> bool:
        """Whether it has answered nothing but 429 for a while: then callers are told, and try again."""
        now = asyncio.get_running_loop().time()
        self._busy_since = self._busy_since or now
        return now - self._busy_since >= BUSY

    def _busy(self, answer: Response) -> DibsError:
        return BackendUnavailable(
            f"{self.shown}: the API server {self.access.server.netloc} is busy and throttles requests (429): "
            f"{message_of(answer)}. Use Dibs less often, or raise the server's limits"
        )

    def problem(self, answer: Response, wanted: str) -> DibsError:
        """The error that an answer tells of."""
        told, shown, access = message_of(answer), self.shown, self.access
        if answer.status == HTTPStatus.UNAUTHORIZED:
            return Forbidden(
                f"{shown}: the API server does not know who we are: {told}. Check {access.source}, which "
                f"gives {access.credentials.shown}"
            )
        if answer.status == HTTPStatus.FORBIDDEN:
            if is_refusal(told):
                return Forbidden(f"{shown}: the API server refuses to {wanted} a Lease: {told}")
            return Forbidden(
                f"{shown}: no right to {wanted} Leases in the namespace {access.namespace!r}: {told}. "
                f"A Role must {RBAC}"
            )
        if answer.status == HTTPStatus.NOT_FOUND:
            return NotConfigured(
                f"{shown}: {told}: check that the namespace {access.namespace!r} exists, and that this "
                f"is a Kubernetes API server: {access.server.netloc}"
            )
        if answer.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
            return InvalidRequest(f"{shown}: the API server refuses to {wanted} a Lease: {told}")
        return BackendUnavailable(f"{shown}: {told}")

    # -- cells --------------------------------------------------------------------------------------

    async def open(self) -> None:
        self.client.part(parting=False)
        await self.load(PROBE)

    async def close(self) -> None:
        self.part()

    async def load(self, key: bytes) -> Cell:
        answer = await self.request("GET", f"{self.leases}/{lease_name(key)}")
        if answer.status == HTTPStatus.OK:
            return read_lease(key, self.read(answer))
        if answer.status == HTTPStatus.NOT_FOUND and details_of(answer).get("kind") == "leases":
            return Cell(None, None)
        raise self.problem(answer, "get")

    def read(self, answer: Response) -> Any:
        """The object in an answer."""
        try:
            return _decode(answer.body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BackendUnavailable(
                f"{self.shown} answered what can't be read: {error}"
            ) from error

    async def swap(self, key: bytes, version: Any, change: Change) -> Any:
        if change.state is None:
            return await self._delete(key, version)
        lease = write_lease(key, self.access.namespace, version, change)
        if version is None:
            answer = await self.request("POST", self.leases, lease)
        else:
            answer = await self.request("PUT", f"{self.leases}/{lease_name(key)}", lease)
        if answer.status in (HTTPStatus.OK, HTTPStatus.CREATED):
            return written(self.read(answer), change.book)
        if answer.status == HTTPStatus.CONFLICT or (version and answer.status == 404):
            raise SwapConflict
        if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise TooLarge(message_of(answer))
        raise self.problem(answer, "create" if version is None else "update")

    async def _delete(self, key: bytes, version: Any) -> None:
        """Raises `SwapConflict` also for a Lease that somebody else has made: it is not ours to delete."""
        if version is None:
            return
        metadata = version.metadata
        if (metadata.get("labels") or {}).get(MANAGED_BY) != "dibs":
            raise SwapConflict
        same = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        answer = await self.request(
            "DELETE", f"{self.leases}/{lease_name(key)}", {"preconditions": same}
        )
        if answer.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
            raise SwapConflict
        if answer.status != HTTPStatus.OK:
            raise self.problem(answer, "delete")

    async def page(
        self, prefix: bytes, cursor: bytes | None, limit: int
    ) -> tuple[Sequence[tuple[bytes, Cell]], bytes | None]:
        """The server lists in the order of its names, so each page goes through all of them.

        What can't be read is left out: one Lease is no reason to show none.
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
        query = f"{self.leases}?labelSelector={quote(selector)}&limit={LISTED}"
        token = ""
        while True:
            answer = await self.request("GET", f"{query}&continue={token}")
            if answer.status != HTTPStatus.OK:
                raise self.problem(answer, "list")
            listed = self.read(answer)
            for each in listed["items"]:
                yield each
            token = quote(listed["metadata"].get("continue") or "")
            if not token:
                return

    # -- the rest -----------------------------------------------------------------------------------

    async def subscribe(self, inbox: str, receive: Receive) -> Callable[[], None]:
        selector = quote(INBOX + inbox)
        path = f"{self.leases}?watch=1&labelSelector={selector}"
        watch = LeaseWatch(self, path, inbox, receive, self._saw)
        await watch.begin()
        self._watches = {each for each in self._watches if not each.ended} | {watch}

        def end() -> None:
            self._watches.discard(watch)
            watch.end()

        return end

    def _saw(self, lease: dict[str, Any]) -> None:
        """A watch has brought this: the next swap need not load it first."""
        key = true_key(lease)
        if key is None or lease["metadata"]["name"] != lease_name(key):
            return
        with suppress(DibsError):  # whoever loads it is told
            cell, known = read_lease(key, lease), self._known.get(key)
            if known is None or not known.version or is_later(cell.version, known.version):
                self._known[key] = cell

    async def examine(self) -> Sequence[Finding]:
        return await examine(self)

    def part(self) -> None:
        for watch in self._watches:
            watch.end()
        self._watches.clear()
        self.client.part()

    def after_fork(self) -> None:
        self.client.close_in_child()


def _first(found: list[tuple[bytes, Any]], limit: int) -> list[tuple[bytes, Any]]:
    return sorted(found, key=lambda each: each[0])[:limit]


def _retry_after(answer: Response) -> float:
    try:
        return max(float(answer.headers.get("retry-after", RETRY_AFTER)), 0.0)
    except ValueError:
        return RETRY_AFTER
