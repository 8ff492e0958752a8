"""`/` and `/ui/`: the dashboard's files, and signing in and out there."""

import logging

from msgspec import Struct
from starlette.responses import Response

from dibs.errors import DibsError
from dibs.server.api.problems import ApiProblem
from dibs.server.api.responses import Header, empty_response, json_response
from dibs.server.api.routing import PUBLIC, SESSION, Operation
from dibs.server.api.schemas import Nothing
from dibs.server.audit import common_directory
from dibs.server.auth.policy import Scope
from dibs.server.call import Call
from dibs.server.ui.files import INDEX, POLICY, File, all_files, file_response
from dibs.server.ui.sessions import SignedIn
from dibs.stores.http.names import encoded

log = logging.getLogger("dibs.server")

FILES = all_files()

MAX_BODY = 4096


class SignIn(Struct, forbid_unknown_fields=True, frozen=True):
    """How one signs in: by a key, or by a ticket that the server has printed at its start."""

    key: str | None = None
    ticket: str | None = None


class SessionShape(Struct, frozen=True):
    """Who is signed in, and until when, in seconds since 1970."""

    csrf: str
    """To be brought in the header `dibs-csrf` with whatever is not a GET."""
    name: str
    scopes: tuple[str, ...]
    prefixes: tuple[str, ...]
    """In base64."""
    admin: bool
    """Of a directory, if not of everything."""
    expires_at: int


async def index(call: Call) -> Response:
    """The page; whoever takes nothing but JSON is told that there is none here."""
    accept = call.header(b"accept")
    if "application/json" in accept and "text/html" not in accept and "*/*" not in accept:
        raise ApiProblem("no-such-route", "this is the dashboard; for the API see /v1/openapi.json")
    return _answer(call, FILES[INDEX])


async def file(call: Call) -> Response:
    """A file of the page."""
    found = FILES.get(call.params["rest"])
    if found is None:
        raise ApiProblem("no-such-route", "the dashboard has no such file")
    return _answer(call, found)


def _answer(call: Call, found: File) -> Response:
    return file_response(found, known=found.etag in call.headers.get(b"if-none-match", b""))


async def sign_in(call: Call) -> Response:
    """Begin a session."""
    call.query(Nothing)
    if call.header(b"content-type").partition(";")[0].strip().lower() != "application/json":
        raise ApiProblem("media-type", "send application/json with a key or a ticket")
    asked: SignIn = call.decoded(await call.body(MAX_BODY), SignIn)
    sessions = call.service.sessions
    sessions.check_page(call)
    if asked.key is not None and asked.ticket is None:
        found = await sessions.by_key(asked.key)
        return await _begun(call, found, "a key")
    if asked.ticket is not None and asked.key is None:
        async with sessions.by_ticket(asked.ticket) as found:
            return await _begun(call, found, "the link that the server printed")
    raise ApiProblem("malformed", "the body must contain either a key or a ticket")


async def _begun(call: Call, found: SignedIn, by: str) -> Response:
    call.service.quotas.signed_in(found.principal.key_id, found.session.nonce)
    directory = common_directory(found.principal.prefixes)
    detail = {"with": by, "from": call.ip}
    await call.service.audit.write(found.principal, "signed in", directory, detail)
    return _shown(call, found, call.service.sessions.cookie(call, found.session))


async def session(call: Call) -> Response:
    """Whose session it is, and what it needs."""
    return _shown(call, _found(call))


async def sign_out(call: Call) -> Response:
    """End the session: 503 if the other servers do not know yet."""
    sessions, found = call.service.sessions, _found(call)
    try:
        await sessions.end(found.session)
    except DibsError as error:
        raise ApiProblem(
            "unavailable",
            f"this server has ended the session, others accept it until the records can be written: {error}",
            headers=(sessions.no_cookie(call), *POLICY),
        ) from None
    directory = common_directory(found.principal.prefixes)
    try:
        await call.service.audit.write(found.principal, "signed out", directory)
    except DibsError as error:
        log.warning("could not write a sign-out to the audit: %s", error)
    return empty_response(204, sessions.no_cookie(call), *POLICY)


def _found(call: Call) -> SignedIn:
    assert call.session is not None, "the route needs one"
    return SignedIn(call.session, call.principal)


def _shown(call: Call, found: SignedIn, *headers: Header) -> Response:
    who = found.principal
    shape = SessionShape(
        call.service.sessions.token(found.session),
        who.name,
        tuple(sorted(who.scopes)),
        tuple(encoded(prefix) for prefix in who.prefixes),
        Scope.ADMIN in who.scopes,
        found.session.expires_at,
    )
    return json_response(shape, 200, *headers, *POLICY)


ROUTES = (
    Operation(
        method="GET",
        path="/",
        needs=PUBLIC,
        handler=index,
        summary="The dashboard",
        media="text/html",
        documented=False,
    ),
    Operation(
        method="GET",
        path="/ui/{rest}",
        needs=PUBLIC,
        handler=file,
        summary="A file of the dashboard",
        documented=False,
    ),
    Operation(
        method="POST",
        path="/ui/session",
        needs=PUBLIC,
        handler=sign_in,
        summary="Sign in at the dashboard",
        body=SignIn,
        documented=False,
    ),
    Operation(
        method="GET",
        path="/ui/session",
        needs=SESSION,
        handler=session,
        summary="Who is signed in at the dashboard",
        documented=False,
    ),
    Operation(
        method="DELETE",
        path="/ui/session",
        needs=SESSION,
        handler=sign_out,
        summary="Sign out at the dashboard",
        documented=False,
    ),
)
