"""The dashboard: its files, and signing in and out."""

import logging

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from dibs.errors import DibsError
from dibs.server.api.parameters import BodyReader, decode_body
from dibs.server.api.problems import ApiProblem
from dibs.server.api.responses import Header, empty_response, json_response
from dibs.server.api.routing import PUBLIC, SESSION, Caller, route
from dibs.server.api.schemas import Nothing
from dibs.server.audit import Audit, common_directory
from dibs.server.auth.policy import Scope
from dibs.server.auth.sessions import Sessions, SignedIn
from dibs.server.quotas import Quotas
from dibs.stores.http.names import encoded

log: logging.Logger = logging.getLogger("dibs.server")

MAX_BODY = 4096
"""Bytes of a request to sign in."""

_ALLOWED = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "font-src 'self'",
    "manifest-src 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'self'",
)

_FEATURES = (
    "accelerometer", "autoplay", "camera", "display-capture", "encrypted-media", "fullscreen",
    "geolocation", "gyroscope", "hid", "idle-detection", "magnetometer", "microphone", "midi",
    "payment", "picture-in-picture", "publickey-credentials-get", "screen-wake-lock", "serial",
    "usb", "xr-spatial-tracking",
)  # fmt: skip
"""Features of browsers that the page cannot use. `clipboard-write` is missing, as names can be copied."""

POLICY: tuple[Header, ...] = (
    (b"content-security-policy", "; ".join(_ALLOWED).encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", ", ".join(f"{each}=()" for each in _FEATURES).encode()),
)
"""Headers of every answer at `/` and below `/ui/`, besides those that every answer of a server has."""


class SignIn(Struct, forbid_unknown_fields=True, frozen=True):
    """How to sign in: with an API key, or with the text of a sign-in link."""

    key: str | None = None
    ticket: str | None = None


class SessionShape(Struct, frozen=True):
    """Who is signed in, and until when, in seconds since 1970."""

    csrf: str
    """To be sent in the header `dibs-csrf` with every request that is not a GET."""
    name: str
    scopes: tuple[str, ...]
    prefixes: tuple[str, ...]
    """In base64."""
    admin: bool
    """Of a directory, if not of everything."""
    expires_at: int


class Pages:
    """The dashboard's files and sessions."""

    def __init__(
        self, sessions: Sessions, quotas: Quotas, audit: Audit, bodies: BodyReader
    ) -> None:
        self._sessions = sessions
        self._quotas = quotas
        self._audit = audit
        self._bodies = bodies
        self._files = StaticFiles(packages=[("dibs.server", "ui/assets")])

    @route("GET", "/", PUBLIC, media="text/html", documented=False)
    async def index(self, caller: Caller) -> Response:
        """The dashboard.

        A caller that accepts only JSON gets a 404 that names the API.
        """
        accept = caller.header(b"accept")
        if "application/json" in accept and "text/html" not in accept and "*/*" not in accept:
            raise ApiProblem(
                "no-such-route", "this is the dashboard; for the API see /v1/openapi.json"
            )
        return await self._file("index.html", caller)

    @route("GET", "/ui/{rest}", PUBLIC, documented=False)
    async def file(self, caller: Caller, rest: str) -> Response:
        """A file of the dashboard."""
        if any(part in ("", ".", "..") for part in rest.split("/")):
            raise _no_such_file()  # each file has one path
        return await self._file(rest, caller)

    async def _file(self, path: str, caller: Caller) -> Response:
        """A file, or 304. Browsers may keep it, and ask each time whether it has changed."""
        try:
            response = await self._files.get_response(path, caller.scope)
        except HTTPException:
            raise _no_such_file() from None
        response.raw_headers += ((b"cache-control", b"no-cache"), *POLICY)
        return response

    @route("POST", "/ui/session", PUBLIC, query=Nothing, body=SignIn, documented=False)
    async def sign_in(self, caller: Caller) -> Response:
        """Sign in at the dashboard."""
        if caller.header(b"content-type").partition(";")[0].strip().lower() != "application/json":
            raise ApiProblem("media-type", "send application/json with a key or a ticket")
        given: SignIn = decode_body(await self._bodies.read(caller, MAX_BODY), SignIn)
        self._sessions.check_page(caller)
        if given.key is not None and given.ticket is None:
            found = await self._sessions.by_key(given.key)
            await self._record_sign_in(caller, found, "a key")
        elif given.ticket is not None and given.key is None:
            found, link = await self._sessions.by_link(given.ticket)
            await self._record_sign_in(caller, found, "the link that the server printed")
            await self._sessions.use_up(link)  # last, so that a sign-in that fails can be repeated
        else:
            raise ApiProblem("malformed", "the body must contain either a key or a ticket")
        return self._show(found, self._sessions.cookie(caller, found.session))

    async def _record_sign_in(self, caller: Caller, found: SignedIn, means: str) -> None:
        """Count the sign-in, and write it to the audit log. Raises `ApiProblem`, 429."""
        self._quotas.signed_in(found.principal.key_id, found.session.nonce)
        detail = {"with": means, "from": caller.ip}
        directory = common_directory(found.principal.prefixes)
        await self._audit.write(found.principal, "signed in", directory, detail)

    @route("GET", "/ui/session", SESSION, documented=False)
    async def session(self, caller: Caller) -> Response:
        """Who is signed in at the dashboard.

        The answer contains the CSRF token of the session.
        """
        return self._show(_signed_in(caller))

    @route("DELETE", "/ui/session", SESSION, documented=False)
    async def sign_out(self, caller: Caller) -> Response:
        """Sign out at the dashboard.

        The answer is 503 if that cannot be recorded. Then the session goes on.
        """
        found = _signed_in(caller)
        no_cookie = self._sessions.no_cookie(caller)
        await self._sessions.end(found.session)
        directory = common_directory(found.principal.prefixes)
        try:
            await self._audit.write(found.principal, "signed out", directory)
        except DibsError as error:
            log.warning("could not write a sign-out to the audit: %s", error)
        return empty_response(204, no_cookie, *POLICY)

    def _show(self, found: SignedIn, *headers: Header) -> Response:
        who = found.principal
        shape = SessionShape(
            self._sessions.csrf_token(found.session),
            who.name,
            tuple(sorted(who.scopes)),
            tuple(encoded(prefix) for prefix in who.prefixes),
            Scope.ADMIN in who.scopes,
            found.session.expires_at,
        )
        return json_response(shape, 200, *headers, *POLICY)


def _signed_in(caller: Caller) -> SignedIn:
    assert caller.session is not None, "the route needs one"
    return SignedIn(caller.session, caller.principal)


def _no_such_file() -> ApiProblem:
    return ApiProblem("no-such-route", "the dashboard has no such file")
