"""The ASGI application: routes requests, sees who asks, and answers errors as problems."""

import logging
import traceback
from collections.abc import Iterable
from functools import cache, partial

from starlette.requests import ClientDisconnect, Request
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
from dibs.server.api.openapi import describe
from dibs.server.api.parameters import check_no_body
from dibs.server.api.problems import ApiProblem, forbidden, unauthenticated
from dibs.server.api.push import PushRoutes
from dibs.server.api.responses import encode
from dibs.server.api.routing import (
    BoundOperation,
    Found,
    Needs,
    Operation,
    no_such_route,
    starlette_routes,
)
from dibs.server.api.service import ServiceRoutes
from dibs.server.api.sse import EventStreams
from dibs.server.api.waiting import WaitingAcquires
from dibs.server.auth.keys import Unauthenticated
from dibs.server.auth.policy import Principal
from dibs.server.call import Call, handler_of
from dibs.server.placement.router import Moving
from dibs.server.routes import ROUTES
from dibs.server.service import Service
from dibs.server.ui.pages import POLICY, Pages
from dibs.stores.http.wire import holders_to_wire

log = logging.getLogger("dibs.server")

MESSAGE = 1_000
"""Characters of an unexpected error's message that are logged."""

HUNG_UP = 499
"""The status that is counted for a request whose client has left before its answer."""


class Application:
    """Operations over one service. `parts` have the handlers that are methods."""

    def __init__(
        self,
        service: Service,
        operations: Iterable[Operation],
        parts: Iterable[object] = (),
    ) -> None:
        self.service = service
        owners = {type(part): part for part in parts}
        bound = [
            BoundOperation(
                each, handler_of(each, owners[each.owner]) if each.owner else each.handler
            )
            for each in operations
        ]
        self.router = Router(
            starlette_routes(bound, self._respond),
            redirect_slashes=False,
            default=self._respond_nowhere,
        )

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await _refuse(scope, receive, send)
        return await self.router(scope, receive, send)

    async def _respond_nowhere(self, scope: Connection, receive: Receive, send: Send) -> None:
        await self._respond(no_such_route(), scope, receive, send)

    async def _respond(self, found: Found, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer a request for an operation, or with the problem of there being none."""
        tracing = self.service.spans
        if tracing is None:
            return await self._answer(found, scope, receive, send)
        operation = None if isinstance(found, ApiProblem) else found.operation
        return await tracing.answer(operation, partial(self._answer, found), scope, receive, send)

    async def _answer(self, found: Found, scope: Connection, receive: Receive, send: Send) -> None:
        service, status = self.service, 0
        operation = None if isinstance(found, ApiProblem) else found.operation
        begun = service.now()
        try:
            response = await self._response(found, Request(scope, receive, send))
            status = getattr(response, "status_code", 200)
            await response(scope, receive, send)
        except ClientDisconnect:
            status = HUNG_UP
        finally:
            for meter in service.meters:
                meter(operation, status, service.now() - begun)

    async def _response(self, found: Found, request: Request) -> ASGIApp:
        """The response, whatever goes wrong. Raises `ClientDisconnect` if nobody waits for it."""
        call = None
        try:
            if b"%" in request.scope["raw_path"]:
                _check_escapes(request.scope["raw_path"])
            if isinstance(found, ApiProblem):
                raise found
            operation = found.operation
            call = Call(self.service, request, operation)
            if operation.needs.kind != "public":
                call.principal = await self._principal(call, operation.needs)
                _check(call, operation.needs)
            if operation.body is None and not operation.ignores_body:
                check_no_body(call)
            return await found.handle(call)
        except ApiProblem as problem:
            if problem.kind == "forbidden" and call is not None:
                tried = f"{call.route.method} {call.route.path}"
                self.service.audit.deny(call.principal, tried, call.name)
            return _guarded(problem, request)
        except DibsError as error:
            return _guarded(_problem_of(error), request)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it was, the client gets an answer
            log.error(
                "%s failed: %s: %a\n%s",  # the message may quote what a client sent, so it is escaped
                "a request" if call is None else call.route.path,
                type(error).__name__,
                str(error)[:MESSAGE],
                "".join(traceback.format_tb(error.__traceback__)),
            )
            return _guarded(ApiProblem("bug", "unexpected error; see the server log"), request)

    async def _principal(self, call: Call, needs: Needs) -> Principal:
        """Who asks. Raises `ApiProblem`: 401, or 403 for a session that another site's page uses."""
        raw = call.headers.get(b"authorization")
        if needs.kind == "session" or (raw is None and self.service.sessions.is_brought(call)):
            if raw is not None:
                raise unauthenticated("this route needs a dashboard session, not an API key")
            return await self.service.sessions.authenticate(call)
        header = None if raw is None else raw.decode("latin-1")
        keys = self.service.keys
        try:
            try:
                return keys.authenticate(header)
            except (Unauthenticated, BackendUnavailable):
                return await keys.admit(header)
        except Unauthenticated as refusal:
            raise unauthenticated(str(refusal), invalid=bool(header)) from None


def build_app(service: Service) -> Application:
    """All that the service serves."""
    return Application(service, ROUTES, _parts_of(service))


def _parts_of(service: Service) -> Iterable[object]:
    """What has the handlers that are methods, each with the parts of the service that it uses."""
    leases, quotas, reader, limits = service.leases, service.quotas, service.reader, service.limits
    changing, reading = quotas.changing, quotas.reading
    waiting = WaitingAcquires(leases, quotas, service.endings)
    yield LockRoutes(leases, quotas, waiting, service.audit, limits)
    yield BatchRoutes(leases, quotas, reader, service.post, service.audit, limits, service.bodies)
    yield ListingRoutes(leases, reader, limits)
    answers = EventStreams(service.endings, quotas, limits)
    yield PushRoutes(answers, service.post)
    yield EventRoutes(service.server_id, answers, service.activity, leases, reader, reading, limits)
    yield KeyRoutes(service.keys, service.audit, changing)
    if service.placing is not None:
        yield PlacementRoutes(service.placing, changing)
    yield ServiceRoutes(
        service.server_id,
        lambda: service.runtime.capabilities,
        service.keys,
        service.limits,
        service.bodies,
        service.health,
        None if service.metrics is None else service.metrics.shown,
        _description,
    )
    yield Pages(service.sessions, service.quotas, service.audit, service.bodies)


@cache
def _description() -> bytes:
    return encode(describe(ROUTES))


def _problem_of(error: DibsError) -> ApiProblem:
    """A problem for what the library raises."""
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


def _check(call: Call, needs: Needs) -> None:
    """Raises `ApiProblem`, 403, without telling anything but which scope is missing where."""
    scope = needs.scope
    if scope is None:
        return
    if needs.forced is not None and _is_forced(call):
        scope = needs.forced
    if needs.kind == "everywhere":
        if not call.principal.may_everywhere(scope):
            raise ApiProblem("forbidden", f"requires an API key with scope {scope} for all names")
    elif needs.kind == "somewhere":
        if not call.principal.may_somewhere(scope):
            raise ApiProblem("forbidden", f"requires an API key with scope {scope}")
    elif needs.hidden:
        call.allowed = call.principal.may(scope, call.name)
    elif not call.principal.may(scope, call.name):
        raise forbidden(scope, call.name)


def _is_forced(call: Call) -> bool:
    kind = call.route.query
    return kind is not None and bool(getattr(call.query(kind), "force", False))


def _guarded(problem: ApiProblem, request: Request) -> ASGIApp:
    """A problem as a response; beside the dashboard's page, with the policy that browsers get there."""
    response, path = problem.response(), request.scope["raw_path"]
    if path == b"/" or path.startswith(b"/ui/"):
        response.raw_headers += POLICY
    return response


async def _refuse(scope: Connection, receive: Receive, send: Send) -> None:
    """There are no web sockets here; `serve` starts and ends the server."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1003})
    elif scope["type"] == "lifespan":
        raise RuntimeError("the service is started by dibs.server.serve")
