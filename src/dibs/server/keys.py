"""The keys that the service lets in: they are known by heart, so that asking costs a dict and a hash.

When a key was last used is not kept: that would be a write for every request, to one hot record. Who
did what of consequence stands in the audit.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from hmac import compare_digest

from dibs.clock import Clock, SystemClock
from dibs.errors import BackendUnavailable, DibsError
from dibs.server.keys_document import KIND, Key
from dibs.server.keys_known import KnownKeys, Markers
from dibs.server.keys_shapes import check_name
from dibs.server.principal import Principal, Scope
from dibs.server.records.port import Conflict, Records
from dibs.server.scopes import reduced, with_implied
from dibs.server.secrets import (
    PREFIX,
    Secrets,
    hashed,
    id_of,
    is_key_id,
    new_key,
    new_key_id,
)
from dibs.server.tokens import Tokens

KEPT = 30 * 86400.0
"""Seconds for which a key that has ended is remembered, so that its owner is told what happened."""

_NOBODY = bytes(32)
"""What is compared where there is no such key, so that the answer takes as long."""

_FIRST = ("mark", "first-key")

_TOLD = {
    "missing": "send an API key in the header `Authorization: Bearer dibs_…`",
    "malformed": "the Authorization header must be `Bearer` followed by an API key (dibs_…) or a token",
    "unknown": "unknown API key",
    "revoked": "this API key was revoked: ask your administrator for a new one",
    "expired": "this API key or token has expired: get a new one",
}


_UNKNOWN = (
    "the service could read neither its records nor its store for a minute, so this key may be revoked: "
    "all requests are rejected until it can. Operators: check the store and the records"
)


class Unauthenticated(Exception):
    """Nobody whom we know: `reason` is missing, malformed, unknown, revoked or expired."""

    def __init__(self, reason: str) -> None:
        super().__init__(_TOLD[reason])
        self.reason = reason


class UnknownKey(LookupError):
    """There is no key of that id."""


class KeyRing:
    """All keys. One event loop uses it, between `load` and `close`, over records that are open."""

    def __init__(
        self, records: Records, clock: Clock | None = None, secrets: Secrets | None = None
    ) -> None:
        self._records = records
        self.secrets = secrets or Secrets()
        """The service's own; to be used by way of `secrets.derived`."""
        self._clock = clock or SystemClock()
        self._known = KnownKeys(records, self._clock)
        self._tokens = Tokens(self.secrets.accepted, self._clock)

    async def load(self) -> None:
        """Learn all keys, and from now on what becomes of them."""
        await self._known.load()

    async def close(self) -> None:
        """Look no more."""
        await self._known.close()

    async def refresh(self) -> None:
        """Learn what other servers have changed, if anything; it happens every second by itself."""
        await self._known.refresh()

    @property
    def stale_for(self) -> float:
        """Seconds since the records could last be read."""
        return self._known.stale_for

    @property
    def is_current(self) -> bool:
        """Whether it was asked within a minute which keys are good; if not, nobody is let in."""
        return self._known.is_current

    async def on_change(self, read: Callable[[], Awaitable[None]]) -> None:
        """Call `read` now, and whenever anything in the records has changed."""
        await read()
        self._known.on_change.append(read)

    def leave_markers(self, markers: Markers) -> None:
        """Leave word of revoked keys in the stores from now on, and look there if the records are away."""
        self._known.markers = markers

    def watch(self, key_id: str, ended: Callable[[], None]) -> Callable[[], None]:
        """Have `ended` called once, in the loop, when that key is good no more: for what lasts long.

        What is returned takes that back.
        """
        return self._known.watch(key_id, ended)

    def now(self) -> float:
        """Seconds since 1970, as all times of keys."""
        return self._clock.stamp() / 1e6

    # -- who asks -----------------------------------------------------------------------------------

    def authenticate(self, header: str | None) -> Principal:
        """Whose key or token an `Authorization` header brings. Raises `Unauthenticated`."""
        if not header:
            raise Unauthenticated("missing")
        scheme, _, credential = header.partition(" ")
        if scheme.lower() != "bearer" or not credential.isascii():
            raise Unauthenticated("malformed")
        credential = credential.strip()
        if credential.startswith(PREFIX):
            return self.owner_of(credential)
        return self._bearer_of(credential)

    async def admit(self, header: str | None) -> Principal:
        """The same; a key that isn't known is looked for in the records, as it may be new."""
        try:
            return self.authenticate(header)
        except BackendUnavailable:
            pass  # this process may have been asleep
        except Unauthenticated as refusal:
            if refusal.reason != "unknown":
                raise
        await self._known.catch_up()
        return self.authenticate(header)

    def owner_of(self, key: str) -> Principal:
        """Whose key it is. Raises `Unauthenticated`."""
        key_id = id_of(key)
        if key_id is None:
            raise Unauthenticated("unknown")
        found = self._known.get(key_id)
        is_it = compare_digest(hashed(key), _NOBODY if found is None else found.digest)
        if found is None or not is_it:
            raise Unauthenticated("unknown")
        return self._living(found)

    def principal(self, key_id: str) -> Principal:
        """The owner of the key of that id, while it is good. Raises `Unauthenticated`."""
        found = self._known.get(key_id)
        if found is None:
            raise Unauthenticated("unknown")
        return self._living(found)

    async def owner(self, key_id: str) -> Principal:
        """The same; a key that isn't known is looked for in the records, as it may be new."""
        try:
            return self.principal(key_id)
        except Unauthenticated as refusal:
            if refusal.reason != "unknown":
                raise
        await self._known.catch_up()
        return self.principal(key_id)

    def _bearer_of(self, token: str) -> Principal:
        found = self._tokens.key_of(token)
        if found is None:
            raise Unauthenticated("unknown" if token.count(".") == 2 else "malformed")
        key_id, fresh = found
        principal = self.principal(key_id)
        if not fresh:
            raise Unauthenticated("expired")
        return principal

    def _living(self, key: Key) -> Principal:
        if key.revoked is not None or key.expires is not None:
            reason = key.ended(self.now())
            if reason:
                raise Unauthenticated(reason)
        if not self._known.is_current:
            raise BackendUnavailable(_UNKNOWN)
        return key.principal

    def token(self, principal: Principal) -> str:
        """A token that is good for a minute, and no longer than its key."""
        return self._tokens.issue(principal.key_id)

    # -- which keys there are -----------------------------------------------------------------------

    def key(self, key_id: str) -> Key:
        """A key by its id, also one that has ended. Raises `UnknownKey`."""
        found = self._known.get(key_id)
        if found is None:
            raise UnknownKey(key_id)
        return found

    def list(self) -> Sequence[Key]:
        """All keys, also those that have ended lately, by when they were made."""
        return sorted(self._known, key=lambda key: (key.created, key.id))

    def living(self) -> Sequence[Key]:
        """Those that are good."""
        now = self.now()
        return [key for key in self.list() if not key.ended(now)]

    def administrator(self) -> Principal | None:
        """The eldest good key for everything: the first that there was, as long as that one is good."""
        owners = (key.principal for key in self.living())
        return next((each for each in owners if each.may_everywhere(Scope.ADMIN)), None)

    # -- keys come and go ---------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        scopes: Iterable[Scope],
        prefixes: Iterable[bytes],
        *,
        expires_in: float | None = None,
        by: str = "",
    ) -> tuple[Principal, str]:
        """Make a key; the text is told this once. No prefixes: it is good for everything.

        Raises `ValueError` for a name of no 1..128 printable characters, and for no scope.
        """
        check_name(name)
        principal = Principal(new_key_id(), name, with_implied(scopes), reduced(prefixes))
        if not principal.scopes:
            raise ValueError(f"an API key needs at least one scope: {', '.join(Scope)}")
        return await self._add(principal, expires_in, by)

    async def first(self, name: str) -> tuple[Principal, str] | None:
        """A key for an administrator, if there is none and no other server makes one just now."""
        if self.living():
            return None
        principal = Principal(new_key_id(), name, with_implied({Scope.ADMIN}), reduced(()))
        mark = await self._records.get(*_FIRST)
        try:
            version = mark.version if mark else 0
            await self._records.put(*_FIRST, principal.key_id.encode(), version)
        except Conflict:
            return None
        return await self._add(principal, None, "the service")

    async def _add(
        self, principal: Principal, expires_in: float | None, by: str
    ) -> tuple[Principal, str]:
        text, now = new_key(principal.key_id), self.now()
        expires = None if expires_in is None else now + expires_in
        async with self._known.changing:
            await self._known.put(Key(principal, hashed(text), now, by, expires))
            await self._sweep()
        return principal, text

    async def revoke(self, key_id: str) -> Key:
        """End a key, and its tokens, on all servers within two seconds. Raises `UnknownKey`.

        A server that cannot read the records finds the marker in the store, within `BELIEVED`.
        """
        async with self._known.changing:
            key = await self._look_up(key_id)
            while key.revoked is None:
                with suppress(Conflict):  # then somebody else has changed it: look again
                    key = await self._known.put(key.as_revoked(self.now()))
                    break
                key = await self._look_up(key_id)
        with suppress(DibsError):  # each server leaves it again, every second until it can
            await self._known.leave_markers()
        return key

    async def _look_up(self, key_id: str) -> Key:
        """A key as it lies in the records now. Raises `UnknownKey`."""
        record = await self._records.get(KIND, key_id) if is_key_id(key_id) else None
        key = None if record is None else self._known.read(record)
        if key is None:
            raise UnknownKey(key_id)
        return key

    async def _sweep(self) -> None:
        """Forget keys that ended long ago."""
        now = self.now()
        for key in self._known:
            if key.ended(now) and key.ended_since(now) > KEPT:
                with suppress(Conflict):
                    await self._known.remove(key)
