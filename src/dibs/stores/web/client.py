"""Requests to a server that speaks JSON over HTTP, and answers that are read line by line as they come."""

import asyncio
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from weakref import WeakSet

from dibs.stores.web.endpoint import WebEndpoint, host_and_port, reason
from dibs.stores.web.links import LinkPool, Tunnel, WebLink, connect
from dibs.stores.web.reading import NotHttp, Response

TIMEOUT = 10.0
"""Seconds that an answer may take at most. Calls for leases with a short ttl wait less."""

MAX_IDLE = 32
"""Connections that are kept for the next requests."""

MAX_LINE = 1 << 24
"""Bytes of a line at most."""

type Note = Callable[[float, float, float, float], None]
"""Takes the date of an answer, its resolution, and when the request was sent and answered. All in seconds."""


class NotConnected(OSError):
    """No connection could be made: nothing was sent."""


class WebClient:
    """A client of one server, in one loop. Raises `OSError` (`NotConnected`: nothing was sent), `NotHttp`."""

    def __init__(
        self,
        endpoint: WebEndpoint,
        now: Callable[[], float],
        note: Note,
        *,
        tunnel: Tunnel | None = None,
        server_name: str = "",
    ) -> None:
        """`tunnel` makes sockets through a proxy. The certificate is for `server_name`, else the host."""
        self.endpoint: WebEndpoint = endpoint
        self._tunnel = tunnel
        self._server_name = server_name
        self._streams: WeakSet[WebLink] = WeakSet()
        self._now = now
        self._note = note
        self._links: LinkPool[WebLink] = LinkPool(self._dial, MAX_IDLE)
        self._date = ("", 0.0)
        self._host = host_and_port(endpoint.host, endpoint.port).encode("latin-1")

    async def _dial(self) -> WebLink:
        link = WebLink(asyncio.get_running_loop())
        try:
            await connect(link, self.endpoint, self._tunnel, self._server_name)
        except OSError as error:
            why = "it did not answer in time" if isinstance(error, TimeoutError) else reason(error)
            raise NotConnected(why) from error
        return link

    async def request(
        self,
        method: bytes,
        path: bytes,
        headers: bytes = b"",
        body: bytes = b"",
        timeout: float = TIMEOUT,
    ) -> Response:
        """Send a request and return its answer. `headers` are whole lines. Raises `OSError`, `NotHttp`."""
        link = self._links.idle() or await self._links.take()
        sent = self._now()
        answer = await self._links.ask(link, self._request(method, path, headers, body), timeout)
        date = answer.headers.get("date")
        if date is not None:
            if date != self._date[0]:
                self._date = (date, _seconds(date))
            if self._date[1]:
                self._note(self._date[1], 1.0, sent, self._now())
        return answer

    def _request(self, method: bytes, path: bytes, headers: bytes, body: bytes) -> bytes:
        head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%b" % (method, path, self._host, headers)
        if not body and method == b"GET":
            return head + b"\r\n"
        return b"%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
            head,
            len(body),
            body,
        )

    async def lines(
        self,
        method: bytes,
        path: bytes,
        headers: bytes,
        body: bytes,
        line: Callable[[bytes], None],
        over: Callable[[Response | Exception], None],
        begun: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Send a request, and hand over the lines of its answer as they come; return what ends that.

        `begun` is called when the head of the answer says 200. `over` is called once, when the answer has
        ended or if it is not a 200. Raises like `request`.
        """
        link = await self._dial()
        self._streams.add(link)
        rest = b""

        def piece(data: bytes) -> None:
            nonlocal rest
            *whole, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE:
                raise NotHttp("a line is too large")
            for each in whole:
                if each:
                    line(each)

        def head(answer: Response) -> Callable[[bytes], None] | None:
            if answer.status != 200:
                return None
            if begun is not None:
                begun()
            return piece

        def end(found: Response | Exception) -> None:
            link.close()  # it is in no pool
            over(found)

        link.reader.heed = head
        link.launch(self._request(method, path, headers, body), end)
        return link.close

    def leave(self) -> None:
        """Use none of the present connections for later requests."""
        self._links.leave()

    def part(self, *, parting: bool = True) -> None:
        """Close connections as soon as they are idle, from now on; or no longer."""
        self._links.part(parting=parting)

    def close_in_child(self) -> None:
        """Close the sockets that a fork has copied, and send nothing."""
        self._links.close_in_child()
        for link in self._streams:
            link.close_in_child()


def _seconds(date: str) -> float:
    """A date of HTTP as seconds since 1970; 0 if it is none."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return 0.0
