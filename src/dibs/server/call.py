"""One request, as its handler sees it."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from dibs.server import parameters
from dibs.server.connection import connection_of
from dibs.server.principal import Principal
from dibs.server.problems import Problem

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from dibs.server.routing import Route
    from dibs.server.service import Service
    from dibs.server.ui.seal import Session

_NOBODY = Principal("", "", frozenset(), ())


class Call:
    """A request: who asks, for what, with which parameters."""

    __slots__ = (
        "_query",
        "allowed",
        "headers",
        "name",
        "params",
        "principal",
        "receive",
        "route",
        "scope",
        "send",
        "service",
        "session",
    )

    def __init__(
        self,
        service: "Service",
        scope: "Scope",
        receive: "Receive",
        send: "Send",
        route: "Route",
        params: dict[str, Any],
    ) -> None:
        self.service = service
        self.scope = scope
        self.receive = receive
        self.send = send
        self.route = route
        self.params = params
        """What the path names besides resources."""
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        """The last of each name, which is in lower case."""
        if len(self.headers) != len(scope["headers"]):
            _check_doubles(scope["headers"])
        self.principal = _NOBODY
        self.session: Session | None = None
        """The dashboard's, if it is by one that somebody asks."""
        self.name: bytes = b""
        """The resource that the path names, or the directory, with its slash; empty for the root."""
        self._query: Any = None
        self.allowed = True
        """Whether the route's scope is there, where the route says `hidden`."""
        if params:
            self.name = params["dir"] + b"/" if "dir" in params else params.get("name", b"")

    def key(self, kind: str) -> bytes:
        """The key of the resource of that kind which the path names."""
        return b"%b:%b" % (kind.encode(), self.name)

    @property
    def ip(self) -> str:
        """Where it comes from."""
        client = self.scope.get("client")
        return client[0] if client else ""

    @property
    def is_over(self) -> bool:
        """Whether the caller has hung up already."""
        connection = connection_of(self.scope)
        return connection is not None and connection.is_lost

    def header(self, name: bytes) -> str:
        """A header's value; empty where there is none."""
        return self.headers.get(name, b"").decode("latin-1")

    def query[T: Struct](self, kind: type[T]) -> T:
        """The parameters. Raises `Problem`, 400, for what `kind` has not, has otherwise, or twice."""
        found = self._query
        if type(found) is kind:
            return found
        self._query = found = parameters.read(self.scope["query_string"], kind)
        return found

    async def body(self, most: int) -> bytes:
        """All of the body. Raises `Problem`, 413, if it is longer than that."""
        declared = self.headers.get(b"content-length")
        if declared is not None and (not declared.isdigit() or int(declared) > most):
            raise self._too_large(most)
        message = await self.receive()
        body: bytes = message.get("body", b"")
        if not message.get("more_body"):
            _check_whole(message)
            return self._bounded(body, most)
        parts, length = [body], len(body)
        while message.get("more_body"):
            message = await self.receive()
            _check_whole(message)
            parts.append(message.get("body", b""))
            length += len(parts[-1])
            if length > most:
                raise self._too_large(most)
        return b"".join(parts)

    async def check_no_body(self) -> None:
        """Raises `Problem`, 400, for whoever puts parameters where nobody looks; 413 if it is too long."""
        length = self.headers.get(b"content-length", b"0")
        if length == b"0" and b"transfer-encoding" not in self.headers:
            return
        if await self.body(self.service.limits.max_body):
            raise Problem(
                "malformed", "there is no body here: parameters go into the query, as in ?ttl=30"
            )

    def _bounded(self, body: bytes, most: int) -> bytes:
        if len(body) > most:
            raise self._too_large(most)
        return body

    def _too_large(self, most: int) -> Problem:
        return Problem(
            "body-too-large",
            f"a body here is {most} bytes long at most: send less at a time",
            headers=((b"connection", b"close"),),
        )

    def decoded[T](self, body: bytes, kind: "type[T] | Any") -> Any:
        """A body of JSON. Raises `Problem`, 400, for what is no JSON or is otherwise than `kind`."""
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Problem("malformed", f"the body: {error}") from None


class Gone(Exception):
    """The caller has hung up: nobody reads an answer."""

    route: "Route | None" = None
    """What it had asked for, once that is known."""


async def hung_up(call: Call) -> None:
    """Wait until the caller hangs up; whatever it may still send is dropped."""
    while (await call.receive())["type"] != "http.disconnect":
        pass


_ONCE = (
    b"authorization",
    b"content-type",
    b"content-length",
    b"host",
    b"dibs-csrf",
    b"origin",
    b"sec-fetch-site",
)


def _check_doubles(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises `Problem` where two headers disagree on who asks, or what for."""
    names = [name for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise Problem("malformed", f"there is more than one header {name.decode()}")


def _check_whole(message: Mapping[str, Any]) -> None:
    if message["type"] == "http.disconnect":
        raise Gone
