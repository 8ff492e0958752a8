"""The ASGI application: finds a request's route, sees who asks, and tells what went wrong."""

import logging
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dibs.errors import (
    AcquireTimeout,
    BackendUnavailable,
    DibsError,
    InvalidName,
    InvalidRequest,
    UnsafeTiming,
)
from dibs.server.answers import Answer
from dibs.server.auth.keys import Unauthenticated
from dibs.server.auth.policy import Principal
from dibs.server.call import Call, Gone
from dibs.server.placing.runtime import Moving
from dibs.server.problems import Problem, forbidden, unauthenticated
from dibs.server.routes import ROUTES
from dibs.server.routing import Needs, Route, Router
from dibs.server.service import Service
from dibs.server.ui.files import POLICY
from dibs.stores.http.wire import holders_to_wire

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger("dibs.server")

MESSAGE = 1_000
"""Characters of an unexpected error's message that are logged."""

HUNG_UP = 499
"""What stands for the status of a request whose client has left before its answer."""


class Application:
    """All routes over one service."""

    def __init__(self, service: Service, routes: Iterable[Route] = ROUTES) -> None:
        self.service = service
        self.router = Router(routes)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await _refuse(scope, receive, send)
        if not (self.service.meters or self.service.spans):
            try:
                answer, _ = await self._answer(scope, receive, send)
                return await answer(scope, receive, send)
            except Gone:
                return None
        return await self._metered(scope, receive, send)

    async def _metered(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """The same, told to those who measure and trace."""
        now, status, route = self.service.now, 0, None
        begun = now()
        span = None if self.service.spans is None else self.service.spans.begin(scope)
        try:
            answer, route = await self._answer(scope, receive, send)
            status = getattr(answer, "status", 200)
            if span is not None:
                span.answered(route, status)
            await answer(scope, receive, send)
        except Gone as gone:
            route = route or gone.route
            status = HUNG_UP
            if span is not None:
                span.hung_up(route)
        finally:
            for meter in self.service.meters:
                meter(route, status, now() - begun)
            if span is not None:
                span.end()

    async def _answer(
        self, scope: "Scope", receive: "Receive", send: "Send"
    ) -> "tuple[ASGIApp, Route | None]":
        route = call = None
        try:
            route, params = self.router.match(scope["method"], scope["raw_path"])
            call = Call(self.service, scope, receive, send, route, params)
            if route.needs.kind != "public":
                call.principal = await self._principal(call, route.needs)
                _check(call, route.needs)
            if route.body is None and not route.ignores_body:
                call.check_no_body()
            return await route.handler(call), route
        except Problem as problem:
            if problem.kind == "forbidden" and route is not None and call is not None:
                tried = f"{route.method} {route.path}"
                self.service.audit.deny(call.principal, tried, call.name)
            return _guarded(problem.answer(), scope["raw_path"]), route
        except DibsError as error:
            return _guarded(self._told(error).answer(), scope["raw_path"]), route
        except Gone as gone:
            gone.route = route
            raise
        except Exception as error:  # noqa: BLE001  # whatever it was, the client gets an answer
            log.error(
                "%s failed: %s: %a\n%s",  # the message may quote what a client sent, so it is escaped
                route.path if route else "a request",
                type(error).__name__,
                str(error)[:MESSAGE],
                "".join(traceback.format_tb(error.__traceback__)),
            )
            bug = Problem("bug", "unexpected error; see the server log")
            return _guarded(bug.answer(), scope["raw_path"]), route

    async def _principal(self, call: Call, needs: Needs) -> Principal:
        """Who asks."""
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

    def _told(self, error: DibsError) -> Problem:
        """A problem for what the library raises."""
        if isinstance(error, AcquireTimeout):
            return Problem(
                "held",
                str(error),
                retry_after=1 if error.retry_after is None else error.retry_after,
                holders=holders_to_wire(error.holders),
                position=error.position,
            )
        if isinstance(error, InvalidName | InvalidRequest | UnsafeTiming):
            return Problem("malformed", str(error))
        if isinstance(error, Moving):
            return Problem("moving", str(error), retry_after=2)
        if not isinstance(error, BackendUnavailable):
            log.error("the store refuses: %s", error)
        return Problem("unavailable", str(error), retry_after=1)


def _check(call: Call, needs: Needs) -> None:
    """Raises `Problem`, 403, without telling anything but which scope is missing where."""
    scope = needs.scope
    if scope is None:
        return
    if needs.forced is not None and _is_forced(call):
        scope = needs.forced
    if needs.kind == "everywhere":
        if not call.principal.may_everywhere(scope):
            raise Problem("forbidden", f"requires an API key with scope {scope} for all names")
    elif needs.kind == "somewhere":
        if not call.principal.may_somewhere(scope):
            raise Problem("forbidden", f"requires an API key with scope {scope}")
    elif needs.hidden:
        call.allowed = call.principal.may(scope, call.name)
    elif not call.principal.may(scope, call.name):
        raise forbidden(scope, call.name)


def _is_forced(call: Call) -> bool:
    kind = call.route.query
    return kind is not None and bool(getattr(call.query(kind), "force", False))


def _guarded(answer: Answer, raw_path: bytes) -> Answer:
    """What a browser is told with all that lies beside its page."""
    if raw_path == b"/" or raw_path.startswith(b"/ui/"):
        answer.headers += POLICY
    return answer


async def _refuse(scope: "Scope", receive: "Receive", send: "Send") -> None:
    """There are no web sockets here; a server's start and end are `serve`'s."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1003})
    elif scope["type"] == "lifespan":
        raise RuntimeError("the service is started by dibs.server.serve")
