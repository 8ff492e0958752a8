"""Who is signed in at the dashboard.

A session is a cookie, sealed under the service's secret, so any server takes it and none has to remember
it. It is bound to a key: it may what the key may, and ends with it, or after twelve hours.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from hmac import compare_digest
from typing import NamedTuple

from msgspec.json import decode, encode

from dibs.server.api.problems import ApiProblem, unauthenticated
from dibs.server.api.responses import Header
from dibs.server.api.routing import Caller
from dibs.server.auth.credentials import PREFIX
from dibs.server.auth.keys import KeyService, Unauthenticated
from dibs.server.auth.policy import Principal
from dibs.server.records.port import Conflict, Record, Records
from dibs.server.ui.origin import Origins, over_tls
from dibs.server.ui.seal import Seal, Session, new_session
from dibs.server.ui.tickets import Tickets

LIFETIME = 12 * 3600
"""Seconds that a session is good for."""

TOKEN = b"dibs-csrf"
"""The header by which a session's page shows that it is that page."""

KIND = "session"
"""The kind of records of sessions that were ended: one for each key."""

MOST_ENDED = 1_000
"""Ended sessions of one key that are remembered until they would have ended by themselves."""

READING = frozenset({"GET", "HEAD"})


class SignedIn(NamedTuple):
    """A session, and whose it is."""

    session: Session
    principal: Principal


class Sessions:
    """The sessions of one service, at one of its servers."""

    def __init__(
        self, keys: KeyService, records: Records, tickets: Tickets, origins: Origins
    ) -> None:
        self._keys = keys
        self._records = records
        self._tickets = tickets
        self._origins = origins
        self._seals_of: dict[bytes, Seal] = {}
        self._ended: dict[tuple[str, str], int] = {}
        """When those that signed out would have ended, by key and nonce."""
        self._unwritten: dict[tuple[str, str], int] = {}
        """Those of them that are not in the records yet."""
        self._watchers: dict[Session, list[Callable[[], None]]] = {}

    # -- who asks -----------------------------------------------------------------------------------

    def is_brought(self, caller: Caller) -> bool:
        """Whether there is something like a session in a request."""
        return bool(self._brought(caller))

    async def authenticate(self, caller: Caller) -> Principal:
        """Whose session it is. Raises `ApiProblem`: 401, and 403 where it is not its own page that asks."""
        session = self._only_session(caller)
        if caller.request.method in READING:
            self._origins.check_reading(caller)
        else:
            self._origins.check_changing(caller)
            self._check_token(caller, session)
        try:
            principal = await self._keys.owner(session.key_id)
        except Unauthenticated as refusal:
            raise unauthenticated(str(refusal)) from None
        caller.session = session
        return principal

    @property
    def _seals(self) -> list[Seal]:
        """The newest seals; all are accepted."""
        secrets = self._keys.secrets.accepted()
        self._seals_of = {each: self._seals_of.get(each) or Seal(each) for each in secrets}
        return list(self._seals_of.values())

    def _opened(self, text: str) -> Session | None:
        return next(filter(None, (each.opened(text) for each in self._seals)), None)

    def _brought(self, caller: Caller) -> list[str]:
        return cookie_brought(caller.header(b"cookie"), over_tls=over_tls(caller))

    def _only_session(self, caller: Caller) -> Session:
        """The one that the request brings. Raises `ApiProblem`, 401."""
        now = self._keys.now()
        opened = {self._opened(text) for text in self._brought(caller)}
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

    def _check_token(self, caller: Caller, session: Session) -> None:
        brought, tokens = caller.headers.get(TOKEN), [each.token(session) for each in self._seals]
        if brought is None:
            raise ApiProblem("csrf", "requests that change something need the header dibs-csrf")
        if not any(compare_digest(brought, each.encode()) for each in tokens):
            raise ApiProblem(
                "csrf", "the dibs-csrf header belongs to another session: reload the page"
            )

    def token(self, session: Session) -> str:
        """What the session's page is to bring with whatever changes something."""
        return self._seals[0].token(session)

    # -- signing in and out -------------------------------------------------------------------------

    def check_page(self, caller: Caller) -> None:
        """Raises `ApiProblem`, 403, unless it is a page of ours that wants to sign in."""
        self._origins.check_changing(caller)

    async def by_key(self, key: str) -> SignedIn:
        """A session of the owner of a key, and of no token. Raises `ApiProblem`, 401."""
        key = key.strip()
        try:
            if not (key.isascii() and key.startswith(PREFIX)):
                raise Unauthenticated("unknown")
            return self._begun(await self._keys.admit(f"Bearer {key}"))
        except Unauthenticated as refusal:
            raise unauthenticated(str(refusal)) from None

    @asynccontextmanager
    async def by_ticket(self, ticket: str) -> AsyncGenerator[SignedIn]:
        """A session for a ticket, which is used up unless the block fails. Raises `ApiProblem`, 401."""
        with self._tickets.redeemed(ticket) as key_id:
            yield await self._by_key_id(key_id)

    async def _by_key_id(self, key_id: str | None) -> SignedIn:
        try:
            if key_id is not None:
                return self._begun(await self._keys.owner(key_id))
        except Unauthenticated:
            pass  # the key has ended meanwhile
        raise unauthenticated(
            "this sign-in link was already used or is older than 10 minutes: sign in with an API key, or "
            "restart the server with --sign-in"
        )

    def _begun(self, who: Principal) -> SignedIn:
        until, expires = self._keys.now() + LIFETIME, self._keys.key(who.key_id).expires
        until = until if expires is None else min(until, expires)
        return SignedIn(new_session(who.key_id, int(until)), who)

    async def end(self, session: Session) -> None:
        """End a session: here at once, on all servers within two seconds.

        Raises `BackendUnavailable` if the others do not know yet: `write_ended` tries again.
        """
        which = session.key_id, session.nonce
        self._unwritten[which] = session.expires_at
        self._learn({which: session.expires_at})
        await self.write_ended()

    async def write_ended(self) -> None:
        """Tell the other servers which sessions have ended here. Raises `BackendUnavailable`."""
        for (key_id, nonce), expires_at in list(self._unwritten.items()):
            with suppress(Conflict):  # another server has ended one at the same time: later
                found = await self._records.get(KIND, key_id)
                now, ended = self._keys.now(), _read(found) if found else {}
                ended = {each: until for each, until in ended.items() if until > now}
                if len(ended) >= MOST_ENDED:
                    del ended[min(ended, key=ended.__getitem__)]  # it would have ended first
                ended[nonce] = expires_at
                version = found.version if found else 0
                await self._records.put(KIND, key_id, encode(ended), version)
                self._unwritten.pop((key_id, nonce), None)

    async def read_ended(self) -> None:
        """Learn which sessions have ended on other servers."""
        for record in await self._records.all(KIND):
            self._learn({(record.name, each): until for each, until in _read(record).items()})

    def _learn(self, ended: Mapping[tuple[str, str], int]) -> None:
        now = self._keys.now()
        new = {each: until for each, until in ended.items() if until > now}
        if new.keys() <= self._ended.keys():
            return
        self._ended = {each: until for each, until in self._ended.items() if until > now} | new
        for session in [each for each in self._watchers if self._is_ended(each)]:
            self._tell_watchers(session)

    def _is_ended(self, session: Session) -> bool:
        return (session.key_id, session.nonce) in self._ended

    def watch(self, session: Session, ended: Callable[[], None]) -> Callable[[], None]:
        """Have `ended` called once, in the loop, when a session is good no more: for what lasts long.

        What is returned takes that back.
        """
        loop = asyncio.get_running_loop()
        left = 0.0 if self._is_ended(session) else session.expires_at - self._keys.now()
        timer = loop.call_later(left, self._tell_watchers, session)
        self._watchers.setdefault(session, []).append(ended)

        def forget() -> None:
            timer.cancel()
            watchers = self._watchers.get(session, [])
            if ended in watchers:
                watchers.remove(ended)
            if not watchers:
                self._watchers.pop(session, None)

        return forget

    def _tell_watchers(self, session: Session) -> None:
        for ended in self._watchers.pop(session, ()):
            ended()

    def cookie(self, caller: Caller, session: Session) -> Header:
        """What has a browser keep it."""
        seconds = max(0, session.expires_at - int(self._keys.now()))
        secure = self._origins.is_secure(caller)
        return setting_cookie(self._seals[0].sealed(session), seconds, over_tls=secure)

    def no_cookie(self, caller: Caller) -> Header:
        """What has it forget that."""
        return clearing_cookie(over_tls=self._origins.is_secure(caller))


def _read(record: Record) -> dict[str, int]:
    """When ended sessions would have ended, by nonce."""
    return decode(record.value, type=dict[str, int])


COOKIE = "dibs_session"
SAFE_COOKIE = f"__Host-{COOKIE}"
"""Under TLS. Browsers keep what is called so only if it came by TLS, from just this host."""


def setting_cookie(sealed: str, seconds: int, *, over_tls: bool) -> Header:
    """Have a browser keep it for so long."""
    name, secure = (SAFE_COOKIE, "; Secure") if over_tls else (COOKIE, "")
    told = f"{name}={sealed}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return (b"set-cookie", told.encode())


def clearing_cookie(*, over_tls: bool) -> Header:
    """Have a browser forget it."""
    return setting_cookie("", 0, over_tls=over_tls)


def cookie_brought(header: str, *, over_tls: bool) -> list[str]:
    """All sessions in a `Cookie` header: under TLS those only that came by TLS.

    There may be several: a server on another port of this host may have set one for some path.
    """
    names = (SAFE_COOKIE,) if over_tls else (SAFE_COOKIE, COOKIE)
    pairs = (each.strip().partition("=") for each in header.split(";"))
    return [value for name, _, value in pairs if name in names and value]
