"""The ASGI application: routes requests, checks who asks, and answers errors as problems."""

import logging
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from dibs.errors import (
    AcquireTimeout,
    BackendUnavailable,
    DibsError,
    InvalidName,
    InvalidRequest,
    UnsafeTiming,
)
from dibs.server.api.admin import KeyRoutes, PlacementRoutes
from dibs.server.api.batch import BatchRoutes
from dibs.server.api.events import EventRoutes
from dibs.server.api.listing import ListingRoutes
from dibs.server.api.locks import LockRoutes
from dibs.server.api.notifications import NotificationRoutes
from dibs.server.api.openapi import describe
from dibs.server.api.parameters import BodyReader, decode_body, has_body, id_in_body, read_query
from dibs.server.api.problems import ApiProblem, forbidden, unauthenticated
from dibs.server.api.responses import encode
from dibs.server.api.routing import (
    BoundOperation,
    Caller,
    Found,
    Needs,
    Operation,
    no_such_route,
    path_arguments,
    starlette_routes,
    table_of,
)
from dibs.server.api.service import ServiceRoutes
from dibs.server.audit import Audit
from dibs.server.auth.keys import KeyService, Unauthenticated
from dibs.server.auth.policy import Principal
from dibs.server.auth.sessions import Sessions
from dibs.server.placement.router import Moving
from dibs.server.ui.pages import POLICY, Pages
from dibs.stores.http.wire import holders_to_wire

if TYPE_CHECKING:
    from dibs.server.tracing import Tracing

log: logging.Logger = logging.getLogger("dibs.server")

MESSAGE = 1_000
"""Characters of an unexpected error's message that are logged."""

HUNG_UP = 499
"""The status that is counted for a request whose client has left before its answer."""

TABLE = table_of(
    LockRoutes,
    BatchRoutes,
    ListingRoutes,
    NotificationRoutes,
    ServiceRoutes,
    EventRoutes,
    KeyRoutes,
    PlacementRoutes,
    Pages,
)
"""All operations. Starlette tries paths in this order, so the most frequent come first."""

type Meter = Callable[[Operation | None, int, float], None]
"""Is called after each request: with its operation, the status of its answer, and its seconds."""


class Application:
    """The operations of some parts, such as a `LockRoutes`."""

    def __init__(
        self,
        parts: Iterable[object],
        *,
        keys: KeyService,
        sessions: Sessions,
        audit: Audit,
        bodies: BodyReader,
        now: Callable[[], float],
        meters: Sequence[Meter] = (),
        tracing: "Tracing | None" = None,
    ) -> None:
        self._keys = keys
        self._sessions = sessions
        self._audit = audit
        self._bodies = bodies
        self._now = now
        self._meters = meters
        self._tracing = tracing
        bound = [
            BoundOperation(operation, part) for part in parts for operation in table_of(type(part))
        ]
        self.router: Router = Router(
            starlette_routes(bound, self._respond),
            redirect_slashes=False,
            default=self._respond_nowhere,
        )

    def __call__(self, scope: Connection, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        if scope["type"] != "http":
            return _refuse(scope, receive, send)
        return self.router(scope, receive, send)

    async def _respond_nowhere(self, scope: Connection, receive: Receive, send: Send) -> None:
        await self._respond(no_such_route(), scope, receive, send)

    def _respond(
        self, found: Found, scope: Connection, receive: Receive, send: Send
    ) -> Awaitable[None]:
        """Answer a request for an operation, or with the problem of there being none."""
        if self._tracing is None:
            return self._answer(found, scope, receive, send)
        operation, answer = _operation_of(found), partial(self._answer, found)
        return self._tracing.answer(operation, answer, scope, receive, send)

    async def _answer(self, found: Found, scope: Connection, receive: Receive, send: Send) -> None:
        status, begun = 0, self._now()
        try:
            try:
                response = await self._handle(found, scope, receive)
            except ClientDisconnect:
                raise
            except Exception as error:  # noqa: BLE001  # whatever it was, the client gets an answer
                response = _guarded(_problem_of(error, found), scope)
            status = getattr(response, "status_code", 200)
            await response(scope, receive, send)
        except ClientDisconnect:
            status = HUNG_UP
        finally:
            for meter in self._meters:
                meter(_operation_of(found), status, self._now() - begun)

    async def _handle(self, found: Found, scope: Connection, receive: Receive) -> ASGIApp:
        """Call the handler, if the caller may."""
        if b"%" in scope["raw_path"]:
            _check_escapes(scope["raw_path"])
        if isinstance(found, ApiProblem):
            raise found
        operation, caller = found.operation, Caller(scope, receive)
        needs, path = operation.needs, path_arguments(scope["path_params"])
        name = path.get("name") or path.get("directory", b"")
        try:
            query = None
            if needs.kind != "public":
                caller.principal = await self._principal(caller, needs)
                query = _query(operation, caller) if needs.forced else None
                _check(caller, needs, name, forced=getattr(query, "force", False))
            if operation.body is None and not operation.ignores_body:
                _check_no_body(caller)
            path["query"] = query or _query(operation, caller)
            if operation.max_body:
                raw = await self._bodies.read(caller, operation.max_body)
                path["body"] = decode_body(raw, operation.body)
            elif operation.id_in_body and has_body(caller):
                path["query"] = await id_in_body(
                    path["query"], caller, operation.body, self._bodies
                )
            arguments = {each: path.get(each) or _ABSENT[each] for each in found.arguments}
            return await found.handle(caller, **arguments)
        except ApiProblem as problem:
            if problem.kind == "forbidden":
                tried = f"{operation.method} {operation.path}"
                self._audit.deny(caller.principal, tried, name)
            raise

    async def _principal(self, caller: Caller, needs: Needs) -> Principal:
        """The caller. Raises `ApiProblem`: 401, or 403 for a session that another site's page uses."""
        raw = caller.headers.get(b"authorization")
        if needs.kind == "session" or (raw is None and self._sessions.is_brought(caller)):
            if raw is not None:
                raise unauthenticated("this route needs a dashboard session, not an API key")
            return await self._sessions.authenticate(caller)
        header = None if raw is None else raw.decode("latin-1")
        try:
            try:
                return self._keys.authenticate(header)
            except (Unauthenticated, BackendUnavailable):
                return await self._keys.admit(header)
        except Unauthenticated as refusal:
            raise unauthenticated(str(refusal), invalid=bool(header)) from None


_ABSENT = {"name": b"", "directory": b"", "word": "", "rest": "", "query": None, "body": None}
"""Arguments of a handler with several paths, if its path does not name them."""


def _query(operation: Operation, caller: Caller) -> Any:
    """The parameters of a request; None if its operation has none. Raises `ApiProblem`, 400."""
    if operation.query is None:
        return None
    lease_id = caller.headers.get(b"dibs-lease-id")
    return read_query(caller.scope["query_string"], operation.query, lease_id)


def _check_no_body(caller: Caller) -> None:
    """Raises `ApiProblem`, 400, without reading a body where none is taken."""
    if has_body(caller):
        raise ApiProblem(
            "malformed",
            "this route takes no body: put parameters in the query, as in ?ttl=30",
            headers=((b"connection", b"close"),),
        )


def _operation_of(found: Found) -> Operation | None:
    return None if isinstance(found, ApiProblem) else found.operation


@cache
def description() -> bytes:
    """The OpenAPI document."""
    return encode(describe(TABLE))


def _problem_of(error: Exception, found: Found) -> ApiProblem:
    """A problem for an error of a request, be it the library's or unexpected."""
    if isinstance(error, ApiProblem):
        return error
    if not isinstance(error, DibsError):
        log.error(
            "%s failed: %s: %a\n%s",  # the message may quote what a client sent, so it is escaped
            "a request" if isinstance(found, ApiProblem) else found.operation.path,
            type(error).__name__,
            str(error)[:MESSAGE],
            "".join(traceback.format_tb(error.__traceback__)),
        )
        return ApiProblem("bug", "unexpected error; see the server log")
    if isinstance(error, AcquireTimeout):
        return ApiProblem(
            "held",
            str(error),
            retry_after=1 if error.retry_after is None else error.retry_after,
            holders=holders_to_wire(error.holders),
            position=error.position,
        )
    if isinstance(error, InvalidName | InvalidRequest | UnsafeTiming):
        return ApiProblem("malformed", str(error))
    if isinstance(error, Moving):
        return ApiProblem("moving", str(error), retry_after=2)
    if not isinstance(error, BackendUnavailable):
        log.error("the store refuses: %s", error)
    return ApiProblem("unavailable", str(error), retry_after=1)


def _check_escapes(raw_path: bytes) -> None:
    """Raises `ApiProblem`, 400, where Starlette may have taken the path for another one.

    It undoes escapes first. So it takes an escaped slash for a slash, and overlooks a line feed at the end.
    """
    lower = raw_path.lower()
    if b"%2f" in lower or lower.endswith(b"%0a"):
        raise ApiProblem("malformed", "the path contains an escaped slash or ends in a line feed")


def _check(caller: Caller, needs: Needs, name: bytes, *, forced: bool) -> None:
    """Raises `ApiProblem`, 403, which only tells the missing scope and directory."""
    scope = needs.forced if forced and needs.forced is not None else needs.scope
    if scope is None:
        return
    who = caller.principal
    if needs.kind == "everywhere":
        if not who.may_everywhere(scope):
            raise ApiProblem("forbidden", f"requires an API key with scope {scope} for all names")
    elif needs.kind == "somewhere":
        if not who.may_somewhere(scope):
            raise ApiProblem("forbidden", f"requires an API key with scope {scope}")
    elif needs.hidden:
        caller.allowed = who.may(scope, name)
    elif not who.may(scope, name):
        raise forbidden(scope, name)


def _guarded(problem: ApiProblem, scope: Connection) -> ASGIApp:
    """A problem as a response; beside the dashboard's page, with the policy that browsers get there."""
    response, path = problem.response(), scope["raw_path"]
    if path == b"/" or path.startswith(b"/ui/"):
        response.raw_headers += POLICY
    return response


async def _refuse(scope: Connection, receive: Receive, send: Send) -> None:
    """Reject WebSocket and lifespan connections."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1003})
    elif scope["type"] == "lifespan":
        raise RuntimeError("the service is started by dibs.server.main")
