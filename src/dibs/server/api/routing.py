"""Operations of the API: their paths and methods, the permissions that they need, and their callers.

A handler is a method that `route` marks:

    class Locks:
        @route("GET", "/v1/locks/{name}", SEEING, query=LookQuery)
        async def look(self, caller: Caller, name: bytes, query: LookQuery) -> Response: ...

The first line of its docstring is the summary in the OpenAPI document.

It gets the caller, and each of these that it has an argument for: `name`, the resource in the path;
`directory`, with its slash; `word` and `rest`, text from the path; `query`; `body`.

In a path, `{name}` and `{dir}` are names as `base64:…`, `{word}` is a segment of text, and `{rest}` is all
that is left of it.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Literal

from msgspec import Struct
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from dibs.core.names import MAX_NAME
from dibs.server.api.problems import ApiProblem
from dibs.server.auth.policy import BrowserSession, Principal, Scope
from dibs.stores.http.names import MARK, decoded, encoded

type RouteHandler = Callable[..., Awaitable[ASGIApp]]

type Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


# -- what operations need ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Needs:
    """Permissions that a route needs. Every route has one."""

    kind: Literal["public", "signed-in", "path", "commands", "somewhere", "everywhere", "session"]
    """The required permission, and who filters.

    | kind | required | filters |
    |---|---|---|
    | `public` | nothing | |
    | `signed-in` | any valid API key or session | the handler |
    | `path` | the scope for the name or directory in the path | |
    | `commands` | a scope for each command of the body | `api.batch` |
    | `somewhere` | the scope for any directory | the handler |
    | `everywhere` | the scope for all names | |
    | `session` | a session of the dashboard | |
    """
    scope: Scope | None = None
    hidden: bool = False
    """Without the scope the answer is 404, as for a free name: the handler checks `Caller.allowed`."""
    forced: Scope | None = None
    """The scope that `force=true` in the query needs instead."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a missing scope, and for one that would be ignored."""
        if self.kind not in _WITH_SCOPE | _WITHOUT_SCOPE:
            raise ValueError(f"{self.kind!r} is no class of routes")
        if (self.scope is not None) != (self.kind in _WITH_SCOPE):
            raise ValueError(
                f"{self.kind} goes {'with' if self.scope is None else 'without'} a scope"
            )


_WITH_SCOPE = frozenset({"path", "somewhere", "everywhere"})
_WITHOUT_SCOPE = frozenset({"public", "signed-in", "commands", "session"})

PUBLIC = Needs("public")
SIGNED_IN = Needs("signed-in")
SESSION = Needs("session")
EACH_COMMAND = Needs("commands")
SEEING = Needs("path", Scope.READ, hidden=True)


def on_path(scope: Scope, *, forced: Scope | None = None) -> Needs:
    """A scope for the resource, or the directory, that the path names."""
    return Needs("path", scope, forced=forced)


def somewhere(scope: Scope) -> Needs:
    """A scope for any directory; the handler checks what is done within it."""
    return Needs("somewhere", scope)


def everywhere(scope: Scope) -> Needs:
    """A scope for all names."""
    return Needs("everywhere", scope)


# -- who calls --------------------------------------------------------------------------------------

NOBODY = Principal("", "", frozenset(), ())

_GIVEN_ONCE = (
    b"authorization",
    b"content-type",
    b"content-length",
    b"host",
    b"dibs-csrf",
    b"dibs-lease-id",
    b"origin",
    b"sec-fetch-site",
)


class Caller:
    """The sender of a request, and the request."""

    __slots__ = ("allowed", "headers", "principal", "receive", "scope", "session")

    def __init__(self, scope: Connection, receive: Receive) -> None:
        """Raises `ApiProblem`, 400, for a header of `_GIVEN_ONCE` that is given twice."""
        raw = scope["headers"]
        self.scope: Connection = scope
        self.receive: Receive = receive
        self.headers: Mapping[bytes, bytes] = dict(raw)
        """By name in lower case. A look-up costs a tenth of one in Starlette's headers, which are a list."""
        if len(self.headers) != len(raw):
            _check_doubles(raw)
        self.principal: Principal = NOBODY
        self.session: BrowserSession | None = None
        """The dashboard's session, if the request came with one instead of an API key."""
        self.allowed: bool = True
        """Whether the caller has the scope of an operation that says `hidden`."""

    def header(self, name: bytes) -> str:
        """A header's value; empty if there is none."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def ip(self) -> str:
        """The caller's network address; empty if a proxy names one that cannot be an address."""
        client = self.scope.get("client")
        return client[0] if client and _ADDRESS.fullmatch(client[0]) else ""

    def has_hung_up(self) -> bool:
        """Whether the caller has hung up already. Drops a part of the body."""
        receiving = self.receive().__await__()
        try:
            next(receiving)  # a task of its own would cost several times as much
        except StopIteration as received:
            is_over: bool = received.value["type"] == "http.disconnect"
            return is_over
        receiving.close()  # nothing has come yet
        return False

    async def hung_up(self) -> None:
        """Wait until the caller hangs up. Drops what it still sends."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


_ADDRESS = re.compile(r"[\w.:%-]{1,64}", re.ASCII)


def _check_doubles(headers: Iterable[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in headers]
    for name in _GIVEN_ONCE:
        if names.count(name) > 1:
            raise ApiProblem("malformed", f"the header {name.decode()} is given more than once")


# -- operations -------------------------------------------------------------------------------------

_FROM_PATH = {"name": "{name}", "directory": "{dir}", "word": "{word}", "rest": "{rest}"}
"""Arguments of handlers, and their placeholders in paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method of a path, with all that OpenAPI describes of it."""

    method: Method
    path: str
    needs: Needs
    handler: RouteHandler
    """A method of a class with routes."""
    summary: str
    query: type[Struct] | None = None
    body: Any = None
    """The type of the body, if it takes one."""
    max_body: int = 0
    """Bytes of a body that is decoded for the handler; 0: the handler reads it."""
    id_in_body: bool = False
    """The body is optional, and contains the `id` that the query can have."""
    ignores_body: bool = False
    """Without that, a body is refused where none is taken."""
    answers: Mapping[int, Any] = field(default_factory=dict)
    """The type of the body of each success; None for none, `str` for a text, a tuple for one of several."""
    problems: tuple[int, ...] = ()
    """Statuses of its problems, without those of every operation of its kind."""
    media: str = "application/json"
    """Of its answers."""
    events: Mapping[str, Any] = field(default_factory=dict)
    """The type of the data of each event of a stream, by the event's name; `str` for a text."""
    also_text: bool = False
    """The answer may be a plain text too, where JSON is not asked for."""
    documented: bool = True

    @property
    def is_stream(self) -> bool:
        """Whether its answers go on until one side ends them."""
        return self.media == "text/event-stream"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of the method besides the caller."""
        return tuple(inspect.signature(self.handler).parameters)[2:]


def route[H: RouteHandler](
    method: Method,
    paths: str | tuple[str, ...],
    needs: Needs,
    **fields: Any,
) -> Callable[[H], H]:
    """Mark a method as the handler of a path, or of several. `fields` are those of an `Operation`.

    The summary is the first line of the docstring, unless `fields` have another one.

    Paths that need different permissions have a decorator each.
    """

    def mark(handler: H) -> H:
        summary = fields.pop("summary", "") or (handler.__doc__ or "").partition("\n")[0].rstrip(
            "."
        )
        made = tuple(
            Operation(
                method=method, path=path, needs=needs, handler=handler, summary=summary, **fields
            )
            for path in ((paths,) if isinstance(paths, str) else paths)
        )
        vars(handler)["operations"] = (*made, *getattr(handler, "operations", ()))
        return handler

    return mark


def table_of(*classes: type) -> tuple[Operation, ...]:
    """The operations whose handlers are methods of these classes, in their order.

    Raises `TypeError` for a method with an argument that it would not get.
    """
    found: list[Operation] = []
    for each in classes:
        for member in vars(each).values():
            operations: tuple[Operation, ...] = getattr(member, "operations", ())
            paths = "".join(operation.path for operation in operations)
            for operation in operations:
                _check_arguments(operation, paths)
                found.append(operation)
    return tuple(found)


def _check_arguments(operation: Operation, paths: str) -> None:
    given = {argument for argument, part in _FROM_PATH.items() if part in paths}
    if operation.query is not None:
        given.add("query")
    if operation.max_body:
        given.add("body")
    if unknown := set(operation.arguments) - given:
        names = ", ".join(sorted(unknown))
        raise TypeError(f"{operation.handler.__qualname__}: nothing gives it {names}")


def path_arguments(params: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of handlers that the path contains. Raises `ApiProblem`, 400, for a malformed name."""
    found: dict[str, Any] = {}
    for what, text in params.items():
        if what == "name":
            found[what] = _resource_name(text)
        elif what == "dir":
            found["directory"] = _directory(text)
        else:
            found[what] = text
    return found


def _directory(text: str) -> bytes:
    """A directory, with its slash, which its text leaves out: each directory has one spelling."""
    raw = _resource_name(text)
    if raw.endswith(b"/"):
        shorter = encoded(raw.rstrip(b"/"))
        raise ApiProblem(
            "malformed", f"encode a directory without the slash at its end: {MARK}{shorter}/"
        )
    return raw + b"/"


def _resource_name(text: str) -> bytes:
    if not text.startswith(MARK):
        raise ApiProblem(
            "malformed",
            f"write a name as {MARK} followed by its bytes in URL-safe base64 without padding",
        )
    try:
        raw = decoded(text[len(MARK) :])
    except ValueError:
        raise ApiProblem(
            "malformed", f"the text after {MARK} must be URL-safe base64 without padding"
        ) from None
    if not 1 <= len(raw) <= MAX_NAME:
        raise ApiProblem(
            "malformed", f"a name must be 1 to {MAX_NAME} bytes long; this one is {len(raw)}"
        )
    return raw


# -- paths ------------------------------------------------------------------------------------------


class BoundOperation:
    """An operation of one part, whose handler is called with the caller and `arguments`."""

    __slots__ = ("arguments", "handle", "operation")

    def __init__(self, operation: Operation, part: object) -> None:
        self.operation: Operation = operation
        self.handle: RouteHandler = MethodType(operation.handler, part)
        self.arguments: tuple[str, ...] = operation.arguments


type Found = BoundOperation | ApiProblem
"""The operation of a request, or the problem that there is none."""

type Respond = Callable[[Found, Connection, Receive, Send], Awaitable[None]]


class PathEndpoint:
    """All methods of one path, as an ASGI application.

    Starlette answers 405 from the first of several routes of one path, with the methods of that one only.
    """

    def __init__(self, methods: Mapping[str, BoundOperation], respond: Respond) -> None:
        self.methods: Mapping[str, BoundOperation] = methods
        self._respond = respond

    def __call__(self, scope: Connection, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        found = self.methods.get(scope["method"]) or _no_such_method(self.methods)
        return self._respond(found, scope, receive, send)


def starlette_routes(operations: Iterable[BoundOperation], respond: Respond) -> list[Route]:
    """A route for each path, in order. Paths with `{rest}` come last."""
    paths: dict[str, dict[str, BoundOperation]] = {}
    for bound in operations:
        operation = bound.operation
        methods = paths.setdefault(operation.path, {})
        for method in _methods_of(operation):
            if method in methods:
                raise ValueError(f"two operations for {method} {operation.path}")
            methods[method] = bound
    return [
        Route(path.replace("{rest}", "{rest:path}"), PathEndpoint(paths[path], respond))
        for path in sorted(paths, key=lambda path: path.endswith("{rest}"))
    ]


def _methods_of(operation: Operation) -> Iterator[str]:
    yield operation.method
    if operation.method == "GET" and not operation.is_stream:
        yield "HEAD"


def no_such_route() -> ApiProblem:
    """A problem for a path that leads nowhere."""
    return ApiProblem("no-such-route", "no route matches this path; see /v1/openapi.json")


def _no_such_method(methods: Iterable[str]) -> ApiProblem:
    allowed = ", ".join(sorted(methods))
    return ApiProblem(
        "method", f"allowed methods: {allowed}", headers=((b"allow", allowed.encode()),)
    )
