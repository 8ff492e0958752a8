"""One request, as its handler sees it."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from dibs.server.auth.policy import Principal
from dibs.server.problems import Problem
from dibs.server.wanted import place_in, wanted

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from dibs.server.routing import Route
    from dibs.server.service import Service
    from dibs.server.ui.seal import Session

SMALL_BODY = 1 << 16
"""Bytes of a body that need no room which all API keys share. A connection buffers as many anyway."""

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
        """The caller's network address; empty if a proxy names one that cannot be an address."""
        client = self.scope.get("client")
        return client[0] if client and re.fullmatch(r"[\w.:%-]{1,64}", client[0], re.ASCII) else ""

    def has_hung_up(self) -> bool:
        """Whether the caller has left already; what is left of the body is dropped."""
        loop = asyncio.get_running_loop()
        while True:
            receiving = asyncio.Task(self._message(), loop=loop, eager_start=True)
            if not receiving.done():
                receiving.cancel()
                return False
            if receiving.result()["type"] == "http.disconnect":
                return True

    async def _message(self) -> Mapping[str, Any]:
        return await self.receive()

    def header(self, name: bytes) -> str:
        """A header's value; empty where there is none."""
        return self.headers.get(name, b"").decode("latin-1")

    def query[T: Struct](self, kind: type[T]) -> T:
        """The parameters. Raises `Problem`, 400, for what `kind` has not, has otherwise, or twice."""
        found = self._query
        if type(found) is kind:
            return found
        lease_id = self.headers.get(b"dibs-lease-id")
        self._query = found = read_parameters(self.scope["query_string"], kind, lease_id)
        return found

    async def body(self, most: int) -> bytes:
        """All of the body. Raises `Problem`, 413, if it is longer than that."""
        declared = self.headers.get(b"content-length")
        if declared is not None and (not declared.isdigit() or int(declared) > most):
            raise self._too_large(most)
        seconds = self.service.limits.request_time
        length = most if declared is None else int(declared)
        accounts = self.service.accounts
        bodies = accounts.small_bodies if length <= SMALL_BODY else accounts.bodies
        try:
            async with (
                bodies.turn(self.principal.key_id or self.ip, length),
                asyncio.timeout(seconds),
            ):
                return await self._read(most)
        except TimeoutError:
            raise Problem(
                "late",
                f"a request body must arrive within {seconds:g} s",
                headers=((b"connection", b"close"),),
            ) from None

    async def _read(self, most: int) -> bytes:
        parts, length, more = list[bytes](), 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            length += len(parts[-1])
            more = message.get("more_body", False)
            if length > most:
                raise self._too_large(most)
        return b"".join(parts)

    def check_no_body(self) -> None:
        """Raises `Problem`, 400, without reading a body where none is taken."""
        length = self.headers.get(b"content-length", b"0")
        if length != b"0" or b"transfer-encoding" in self.headers:
            raise Problem(
                "malformed",
                "this route takes no body: put parameters in the query, as in ?ttl=30",
                headers=((b"connection", b"close"),),
            )

    def _too_large(self, most: int) -> Problem:
        return Problem(
            "body-too-large",
            f"the body must be at most {most} bytes long",
            headers=((b"connection", b"close"),),
        )

    def decoded[T](self, body: bytes, kind: "type[T] | Any") -> Any:
        """A body of JSON. Raises `Problem`, 400, for what is no JSON or is otherwise than `kind`."""
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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
    b"dibs-lease-id",
    b"origin",
    b"sec-fetch-site",
)


def _check_doubles(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises `Problem` where two headers disagree on who asks, or what for."""
    names = [name for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise Problem("malformed", f"the header {name.decode()} is given more than once")


MOST = 32
"""Parameters of one request."""


def read_parameters[T: Struct](query: bytes, kind: type[T], lease_id: bytes | None = None) -> T:
    """The parameters; `lease_id` is that of the header, which stands for `id`.

    Raises `Problem`, 400, for what `kind` has not, has otherwise, or twice.
    """
    pairs = _pairs(query)
    if lease_id is not None and "id" in kind.__struct_fields__:
        if "id" in pairs:
            raise Problem("malformed", "give the lease id in Dibs-Lease-Id or in id=, not in both")
        pairs["id"] = lease_id.decode("latin-1")
    try:
        found = msgspec.convert(pairs, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Problem("malformed", _told(str(error), kind)) from None
    if any(each.lower() == "null" for each in pairs.values()):  # msgspec takes that word for None
        for field in msgspec.structs.fields(kind):
            if field.encode_name in pairs and getattr(found, field.name) is None:
                raise Problem("malformed", f"`{field.encode_name}`: leave it out instead of null")
    return found


def _pairs(query: bytes) -> dict[str, str]:
    if not query:
        return {}
    try:
        if b"%" in query or b"+" in query:
            found = parse_qsl(
                query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST
            )
        else:
            parts = query.decode("ascii").split("&")
            found = [part.partition("=")[::2] for part in parts if part]
    except ValueError:
        raise Problem(
            "malformed",
            f"cannot parse the query: it must be percent-encoded UTF-8, at most {MOST} parameters",
        ) from None
    pairs = dict(found)
    if len(pairs) != len(found):
        twice = next(name for name in pairs if sum(name == each for each, _ in found) > 1)
        raise Problem("malformed", f"parameter {twice!r} is given more than once")
    return pairs


def _told(error: str, kind: type[Struct]) -> str:
    """Rewrite msgspec's message in the terms of a query string."""
    if "unknown field" in error:
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        error = error.replace("Object contains unknown field", "unknown parameter")
        return f"{error}; allowed parameters: {known or 'none'}"
    name = place_in(error)
    words = wanted(kind, name)
    if words:
        return f"`{name}` must be {words}"
    return error.replace("Object missing required field", "missing parameter")
