"""The table of routes: what is served where, and what it needs of the caller.

A path is literal but for `{name}`, the name of a resource as `base64:…`, `{dir}/`, a directory likewise,
`{word}`, a segment of text, and `{rest}` at its end, whatever is left. It is matched segment by segment
*before* percent-escapes are undone, so that an escaped slash is never a slash.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from dibs.core.names import MAX_NAME
from dibs.server.auth.policy import Scope
from dibs.server.problems import Problem
from dibs.stores.http.names import MARK, decoded

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from dibs.server.call import Call

type Handler = Callable[["Call"], Awaitable["ASGIApp"]]

type Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a route needs of whoever calls it. There is no route without."""

    kind: Literal["public", "signed-in", "path", "commands", "somewhere", "everywhere", "session"]
    """
    `public`: nothing. `signed-in`: a key, whatever it is good for; the handler leaves out what may not be
    seen. `path`: a scope for the resource, or the directory, that the path names. `commands`: a scope for
    each command of the body (see `routes.batch`). `somewhere`: a scope for any directory; the handler looks
    at what lies within. `everywhere`: a scope without bounds. `session`: a session of the dashboard's.
    """
    scope: Scope | None = None
    hidden: bool = False
    """What is not allowed looks like what is not there: the handler asks `Call.allowed`."""
    forced: Scope | None = None
    """With `force=true` in the query it takes this scope instead."""

    def __post_init__(self) -> None:
        """Raises `ValueError` where a scope is missing, or where nobody would look at it."""
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
    """A scope for any directory; the handler sees to it that what is done lies within."""
    return Needs("somewhere", scope)


def everywhere(scope: Scope) -> Needs:
    """A scope without bounds."""
    return Needs("everywhere", scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path, with all that its description in OpenAPI needs."""

    method: Method
    path: str
    needs: Needs
    handler: Handler
    summary: str
    query: type[Struct] | None = None
    body: Any = None
    """The type of the body, if it takes one."""
    ignores_body: bool = False
    """Without that, one that comes where none is taken is refused."""
    answers: Mapping[int, Any] = field(default_factory=dict)
    """The type of the body of each success; None for none, `str` for a text, a tuple for one of several."""
    problems: tuple[int, ...] = ()
    """Statuses of problems besides those that every route of its kind has."""
    media: str = "application/json"
    """Of its answers."""
    also_text: bool = False
    """The answer may be a plain text too, where JSON is not asked for."""
    documented: bool = True
    names: tuple[str, ...] = field(init=False)
    """What the path names, in its order."""

    def __post_init__(self) -> None:
        names = tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))
        object.__setattr__(self, "names", names)


type Match = tuple[Route, dict[str, Any]]


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        for route in self.routes:
            self._root.add(route.path.split("/")[1:], route)

    def match(self, method: str, raw_path: bytes) -> Match:
        """The route, and what the path names. Raises `Problem`: 404, 405, or 400 for a misspelt name."""
        segments = raw_path.decode("ascii", "replace").split("/")
        node = self._root
        values: list[Any] = []
        for at in range(1, len(segments)):
            segment = segments[at]
            found = node.literals.get(segment)
            if found is not None:
                node = found
                continue
            if node.param is None:
                raise _nothing_here()
            name, node = node.param
            if name == "rest":
                values.append(_text("/".join(segments[at:])))
                break
            values.append(_value(name, segment))
        route = node.methods.get(method)
        if route is None:
            raise _nothing_here() if not node.methods else _no_such_method(node.methods)
        return route, dict(zip(route.names, values, strict=True)) if values else {}


class _Node:
    """A place in the tree of paths."""

    __slots__ = ("literals", "methods", "param")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.param: tuple[str, _Node] | None = None
        self.methods: dict[str, Route] = {}

    def add(self, segments: list[str], route: Route) -> None:
        """Put a route where its path leads."""
        if not segments:
            if route.method in self.methods:
                raise ValueError(f"two routes for {route.method} {route.path}")
            self.methods[route.method] = route
            if route.method == "GET" and route.media != "text/event-stream":
                self.methods["HEAD"] = route
            return None
        head, rest = segments[0], segments[1:]
        if not head.startswith("{"):
            return self.literals.setdefault(head, _Node()).add(rest, route)
        name = head[1:-1]
        if self.param is None:
            self.param = (name, _Node())
        if name != self.param[0] and {name, self.param[0]} != {"name", "dir"}:
            raise ValueError(f"{route.path}: {name} and {self.param[0]} are in the same place")
        return self.param[1].add(rest, route)


def _value(name: str, segment: str) -> Any:
    """What a segment of a path says."""
    if name not in ("name", "dir"):
        return _text(segment)
    return resource_name(_text(segment) if "%" in segment else segment)


def resource_name(text: str) -> bytes:
    """The name that `base64:…` spells. Raises `Problem`, 400, for what is none."""
    if not text.startswith(MARK):
        raise Problem(
            "malformed",
            f"write a name as {MARK} followed by its bytes in URL-safe base64 without padding",
        )
    try:
        raw = decoded(text[len(MARK) :])
    except ValueError:
        raise Problem(
            "malformed", f"the text after {MARK} must be URL-safe base64 without padding"
        ) from None
    if not 1 <= len(raw) <= MAX_NAME:
        raise Problem(
            "malformed", f"a name must be 1 to {MAX_NAME} bytes long; this one is {len(raw)}"
        )
    return raw


def _text(segment: str) -> str:
    try:
        return unquote_to_bytes(segment).decode() if "%" in segment else segment
    except UnicodeDecodeError:
        raise Problem("malformed", "the path contains escapes that are not UTF-8") from None


def _nothing_here() -> Problem:
    return Problem("no-such-route", "no route matches this path; see /v1/openapi.json")


def _no_such_method(methods: Mapping[str, Route]) -> Problem:
    allowed = ", ".join(sorted(methods))
    detail = f"allowed methods: {allowed}"
    return Problem("method", detail, headers=((b"allow", allowed.encode()),))
