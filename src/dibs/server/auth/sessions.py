"""Browser sessions at the dashboard: sign in, check that its own page sends a request, sign out.

A session is a signed cookie, so every server of the service accepts it without storing it. It is bound to an
API key: it may do what the key may, and ends with the key, or after twelve hours. Sessions that were ended
earlier, and sign-in links that were used, are in the records until they would have expired.
"""

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from msgspec.json import decode, encode

from dibs.server.api.problems import ApiProblem, unauthenticated
from dibs.server.api.responses import Header
from dibs.server.api.routing import Caller
from dibs.server.auth.credentials import PREFIX, Signatures
from dibs.server.auth.keys import KeyService, Unauthenticated
from dibs.server.auth.policy import BrowserSession, Principal
from dibs.server.background import Callback, Watchers
from dibs.server.records.port import Conflict, Record, Records

LIFETIME = 12 * 3600
"""Seconds for which a session is valid."""

LINK_LIFETIME = 600
"""Seconds for which a sign-in link is valid."""

CSRF = b"dibs-csrf"
"""The header with the CSRF token of a session. Only the dashboard's own page knows the token."""

KIND = "session"
"""The kind of records of ended sessions and used links, one for each key."""

MOST_ENDED = 1_000
"""Ended sessions of one key that are remembered until they would have expired."""

COOKIE = "dibs_session"
SAFE_COOKIE = f"__Host-{COOKIE}"
"""The name under TLS. Browsers accept this name only from this host, and only over TLS."""

_LINK = "link."
"""Nonces of sign-in links begin with it."""

_READING = frozenset({"GET", "HEAD"})


class SignedIn(NamedTuple):
    """A session, and its owner."""

    session: BrowserSession
    principal: Principal


class SignInLink(NamedTuple):
    """The content of a sign-in link."""

    key_id: str
    expires_at: int
    nonce: str


class Sessions:
    """The sessions of one service, at one of its servers.

    `origins` are the addresses of the service's proxies, where browsers find the dashboard too.
    """

    def __init__(self, keys: KeyService, records: Records, origins: tuple[str, ...] = ()) -> None:
        self._keys = keys
        self._records = records
        self._origins = frozenset(each.rstrip("/").lower() for each in origins)
        self._cookies = Signatures(keys.secrets, "session")
        self._csrf_tokens = Signatures(keys.secrets, "csrf")
        self._links = Signatures(keys.secrets, "sign-in")
        self._ended: dict[tuple[str, str], int] = {}
        """When each ended session would have expired, by key id and nonce."""
        self._watchers = Watchers[BrowserSession]()

    # -- requests -----------------------------------------------------------------------------------

    def is_brought(self, caller: Caller) -> bool:
        """Whether a request has a cookie that may be a session."""
        return any(_cookies_of(caller))

    async def authenticate(self, caller: Caller) -> Principal:
        """The owner of the request's session. Raises `ApiProblem`: 401, or 403 for another site's page."""
        session = self._only_session(caller)
        if caller.scope["method"] in _READING:
            _check_fetch_site(caller, b"none")
        else:
            self.check_page(caller)
            self._check_csrf_token(caller, session)
        try:
            principal = await self._keys.owner(session.key_id)
        except Unauthenticated as refusal:
            raise unauthenticated(str(refusal)) from None
        caller.session = session
        return principal

    def _only_session(self, caller: Caller) -> BrowserSession:
        """The request's session. Raises `ApiProblem`, 401, for none and for several."""
        now = self._keys.now()
        opened = {self._cookies.read(text, BrowserSession) for text in _cookies_of(caller)}
        found = [
            each for each in opened if each and not self._is_ended(each) and now < each.expires_at
        ]
        if not found:
            raise unauthenticated("no active session: sign in", invalid=False)
        if len(found) > 1:
            raise unauthenticated(
                "the browser sent two sessions: sign out, or delete its cookies for this site"
            )
        return found[0]

    def check_page(self, caller: Caller) -> None:
        """Raises `ApiProblem`, 403, unless a page of this service sends the request."""
        _check_fetch_site(caller)
        origin = caller.header(b"origin").lower()
        if not origin:
            raise ApiProblem("csrf", "the Origin header is missing: only browsers can sign in")
        if origin not in self._origins and origin not in _own_origins(caller):
            raise _foreign()

    def csrf_token(self, session: BrowserSession) -> str:
        """The token that the session's page sends with every request that changes something."""
        return self._csrf_tokens.sign(session.nonce)

    def _check_csrf_token(self, caller: Caller, session: BrowserSession) -> None:
        if CSRF not in caller.headers:
            raise ApiProblem("csrf", "requests that change something need the header dibs-csrf")
        if self._csrf_tokens.read(caller.header(CSRF), str) != session.nonce:
            raise ApiProblem(
                "csrf", "the dibs-csrf header belongs to another session: reload the page"
            )

    # -- signing in ---------------------------------------------------------------------------------

    async def by_key(self, key: str) -> SignedIn:
        """A session for the owner of an API key. Raises `ApiProblem`, 401."""
        key = key.strip()
        try:
            if not (key.isascii() and key.startswith(PREFIX)):
                raise Unauthenticated("unknown")
            return self._begin(await self._keys.admit(f"Bearer {key}"))
        except Unauthenticated as refusal:
            raise unauthenticated(str(refusal)) from None

    def link_for(self, key_id: str) -> str:
        """The secret part of a link that signs one browser in, at any server, as the owner of a key."""
        expires_at = int(self._keys.now()) + LINK_LIFETIME
        nonce = _LINK + secrets.token_urlsafe(9)
        return self._links.sign(SignInLink(key_id, expires_at, nonce))

    async def by_link(self, text: str) -> tuple[SignedIn, SignInLink]:
        """A session for a sign-in link, which is not used up yet. Raises `ApiProblem`, 401."""
        link = self._links.read(text, SignInLink)
        if link is None or link.expires_at <= self._keys.now():
            raise _used()
        record = await self._records.get(KIND, link.key_id)
        if link.nonce in _read(record):
            raise _used()
        try:
            return self._begin(await self._keys.owner(link.key_id)), link
        except Unauthenticated:  # the key has ended meanwhile
            raise _used() from None

    async def use_up(self, link: SignInLink) -> None:
        """Use a link up, for all servers. Raises `ApiProblem`, 401, if another request was faster."""
        while True:
            with suppress(Conflict):
                if await self._write(link.key_id, link.nonce, link.expires_at):
                    return
                raise _used()

    def _begin(self, who: Principal) -> SignedIn:
        until, expires = self._keys.now() + LIFETIME, self._keys.key(who.key_id).expires
        until = until if expires is None else min(until, expires)
        session = BrowserSession(who.key_id, int(until), secrets.token_urlsafe(16))
        return SignedIn(session, who)

    def cookie(self, caller: Caller, session: BrowserSession) -> Header:
        """The header with which a browser keeps the session."""
        seconds = max(0, session.expires_at - int(self._keys.now()))
        return _set_cookie(caller, self._cookies.sign(session), seconds)

    # -- signing out --------------------------------------------------------------------------------

    def no_cookie(self, caller: Caller) -> Header:
        """The header with which a browser forgets its session."""
        return _set_cookie(caller, "", 0)

    async def end(self, session: BrowserSession) -> None:
        """End a session: at this server at once, at all servers within two seconds.

        Raises `BackendUnavailable` if it goes on, as that cannot be recorded.
        """
        while True:
            with suppress(Conflict):
                await self._write(session.key_id, session.nonce, session.expires_at)
                break
        self._learn({(session.key_id, session.nonce): session.expires_at})

    async def _write(self, key_id: str, nonce: str, expires_at: int) -> bool:
        """Add a nonce to the record of its key; return whether it is new. Raises `Conflict`."""
        found = await self._records.get(KIND, key_id)
        now = self._keys.now()
        ended = {each: until for each, until in _read(found).items() if until > now}
        if nonce in ended:
            return False
        sessions = [each for each in ended if not each.startswith(_LINK)]
        if len(sessions) >= MOST_ENDED:
            del ended[min(sessions, key=ended.__getitem__)]  # it would have expired first
        ended[nonce] = expires_at
        await self._records.put(KIND, key_id, encode(ended), found.version if found else 0)
        return True

    async def read_ended(self) -> None:
        """Learn which sessions have ended at other servers."""
        for record in await self._records.all(KIND):
            self._learn({(record.name, each): until for each, until in _read(record).items()})

    def _learn(self, ended: Mapping[tuple[str, str], int]) -> None:
        now = self._keys.now()
        new = {each: until for each, until in ended.items() if until > now}
        if new.keys() <= self._ended.keys():
            return
        self._ended = {each: until for each, until in self._ended.items() if until > now} | new
        for session in self._watchers:
            if self._is_ended(session):
                self._watchers.call(session)

    def _is_ended(self, session: BrowserSession) -> bool:
        return (session.key_id, session.nonce) in self._ended

    def watch(self, session: BrowserSession, ended: Callback) -> Callback:
        """Have `ended` called once, in the loop, when a session ends. Call the result to cancel that."""
        loop = asyncio.get_running_loop()
        left = 0.0 if self._is_ended(session) else session.expires_at - self._keys.now()
        timer = loop.call_later(left, self._watchers.call, session)
        forget = self._watchers.add(session, ended)

        def cancel() -> None:
            timer.cancel()
            forget()

        return cancel


def _used() -> ApiProblem:
    return unauthenticated(
        "this sign-in link was already used or is older than 10 minutes: sign in with an API key, or "
        "restart the server with --sign-in"
    )


def _read(record: Record | None) -> dict[str, int]:
    """When each session or link of a record would have expired, by nonce."""
    return {} if record is None else decode(record.value, type=dict[str, int])


# ---- headers and cookies of browsers --------------------------------------------------------------


def _check_fetch_site(caller: Caller, *others: bytes) -> None:
    """Raises `ApiProblem`, 403, if the browser says that another site's page sends the request.

    An old browser does not say. It lets that page send a GET, but not read the answer.
    """
    if caller.headers.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", *others):
        raise _foreign()


def _foreign() -> ApiProblem:
    return ApiProblem(
        "csrf",
        "rejected a request that another site's page sent with your session. If it came from the "
        "dashboard, a proxy in front changes the Host header: see the setting `origins`",
    )


def _is_over_tls(caller: Caller) -> bool:
    """Whether the request came to this server over TLS."""
    return caller.scope.get("scheme") == "https"


def _own_origins(caller: Caller) -> tuple[str, ...]:
    """Origins of this server, by the host name in the request. A proxy in front may do TLS."""
    host = caller.header(b"host").lower()
    schemes = ("https",) if _is_over_tls(caller) else ("https", "http")
    return tuple(f"{scheme}://{host}" for scheme in schemes) if host else ()


def _set_cookie(caller: Caller, value: str, seconds: int) -> Header:
    """`Secure` if the browser speaks TLS, with this server or with a proxy in front."""
    over_tls = _is_over_tls(caller) or caller.header(b"origin").startswith("https://")
    name, secure = (SAFE_COOKIE, "; Secure") if over_tls else (COOKIE, "")
    text = f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return (b"set-cookie", text.encode())


def _cookies_of(caller: Caller) -> Iterator[str]:
    """The values of all session cookies of a request. Over TLS only cookies that were set over TLS count.

    There can be several: a server on another port of this host may have set one for some path.
    """
    names = (SAFE_COOKIE,) if _is_over_tls(caller) else (SAFE_COOKIE, COOKIE)
    for pair in caller.header(b"cookie").split(";"):
        name, _, value = pair.strip().partition("=")
        if name in names and value:
            yield value
