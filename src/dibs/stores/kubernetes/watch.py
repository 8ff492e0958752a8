"""The watch that brings a client's notifications: on all Leases that have its inbox as a label."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.stores.cas.cells import Receive
from dibs.stores.kubernetes.api import KubernetesApi
from dibs.stores.kubernetes.objects import INBOX, read_notifications
from dibs.stores.web.reading import NotHttp, Response

_decode = msgspec.json.Decoder().decode


class LeaseWatch:
    """One inbox. A server ends each watch after a while; `receive` gets an error then, and another begins.

    That one starts with the Leases as they are.
    """

    def __init__(
        self,
        api: KubernetesApi,
        inbox: str,
        receive: Receive,
        saw: Callable[[dict[str, Any]], None],
    ) -> None:
        """`saw` gets each Lease that the watch brings, after its notifications."""
        self._saw = saw
        self._api = api
        selector = quote(INBOX + inbox)
        self._path = f"{api.leases}?watch=1&labelSelector={selector}".encode()
        self._inbox = inbox
        self._receive = receive
        self._known: dict[str, object] = {}
        """The last notifications of each Lease: another elector leaves them in place."""
        self._close: Callable[[], None] | None = None
        self.ended: bool = False

    async def begin(self) -> None:
        """Begin it; once more with new credentials, if there are any. Raises `DibsError`."""
        credentials = self._api.access.credentials
        token = await credentials.header()
        try:
            await self._begin(token)
        except Forbidden:
            if not credentials.renew(token):
                raise
            await self._begin(await credentials.header())

    async def _begin(self, token: bytes) -> None:
        loop, api = asyncio.get_running_loop(), self._api
        begun: asyncio.Future[None] = loop.create_future()

        def head() -> None:
            if not begun.done():
                begun.set_result(None)

        def over(found: Response | Exception) -> None:
            if not begun.done():
                begun.set_exception(self._problem(found))
            elif not self.ended and not begun.cancelled() and begun.exception() is None:
                self.ended = True
                self._receive(self._problem(found))

        try:
            async with asyncio.timeout(api.client.endpoint.connect_timeout):
                self._close = await api.client.lines(
                    b"GET", self._path, api.headers(token), b"", self._line, over, head
                )
                await begun
        except TimeoutError as error:
            self._stop()
            raise BackendUnavailable(f"{api.shown} did not begin a watch in time") from error
        except OSError as error:
            raise api.unreachable(error) from error
        except BaseException:
            self._stop()
            raise

    def _problem(self, found: Response | Exception) -> DibsError:
        if isinstance(found, Response) and found.status != 200:
            return self._api.problem(found, "watch")
        return BackendUnavailable(f"{self._api.shown} ended the watch: {found!r:.200}")

    def _line(self, text: bytes) -> None:
        event: Any = _decode(text)
        kind, lease = event.get("type"), event.get("object") or {}
        if kind == "ERROR":  # most often 410: the server has forgotten what it should go on from
            raise NotHttp(f"the watch has failed: {lease.get('message')}")
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            return
        name = lease["metadata"]["name"]
        found = () if kind == "DELETED" else read_notifications(lease, self._inbox)
        if not found:
            self._known.pop(name, None)
        elif self._known.get(name) != found:
            self._known[name] = found
            self._receive(found)
        if kind != "DELETED":
            self._saw(lease)

    def _stop(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()

    def end(self) -> None:
        """End it, without a call of `receive`."""
        self.ended = True
        self._stop()
