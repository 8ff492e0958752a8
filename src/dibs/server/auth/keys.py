"""API keys: authentication, and how administrators create, list and revoke them.

The time when a key was last used is not recorded: that would be a write for every request. The audit log
says who did what of consequence.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hmac import compare_digest
from typing import Literal

from msgspec.structs import replace

from dibs.clock import Clock, SystemClock
from dibs.errors import BackendUnavailable, DibsError
from dibs.server.audit import Audit, AuditAction, common_directory
from dibs.server.auth.api_key import KIND, KeyMade, NewKey, StoredKey, check_name, key_made
from dibs.server.auth.credentials import (
    PREFIX,
    ServiceSecret,
    Tokens,
    hashed,
    id_of,
    is_key_id,
    new_key,
    new_key_id,
)
from dibs.server.auth.key_cache import KeyCache
from dibs.server.auth.policy import Principal, Scope, read_prefix, reduced, with_implied
from dibs.server.records.port import Conflict, Records

KEPT = 30 * 86400.0
"""Seconds for which an ended key is kept, so that its owner gets the reason."""

KEYS_EACH = 1_000
"""Keys in the directories of an administrator who is not one of everything."""

_NOBODY = bytes(32)
"""Compared if there is no such key, so that the answer takes as long."""

_FIRST = ("mark", "first-key")
"""The record that lets one server only create the first key."""

_REASONS = {
    "missing": "send an API key in the header `Authorization: Bearer dibs_…`",
    "malformed": "the Authorization header must be `Bearer` followed by an API key (dibs_…) or a token",
    "unknown": "unknown API key",
    "revoked": "this API key was revoked: ask your administrator for a new one",
    "expired": "this API key or token has expired: get a new one",
}

_STALE = (
    "the service could read neither its records nor its store for a minute, so this key may be revoked: "
    "all requests are rejected until it can. Operators: check the store and the records"
)


class Unauthenticated(Exception):
    """No valid key: `reason` is missing, malformed, unknown, revoked or expired."""

    def __init__(self, reason: str) -> None:
        super().__init__(_REASONS[reason])
        self.reason: str = reason


class UnknownKey(LookupError):
    """There is no key of that id."""


class KeyService:
    """All keys of a service. One event loop uses it, between `cache.load` and `cache.close`."""

    def __init__(
        self, records: Records, clock: Clock | None = None, secrets: ServiceSecret | None = None
    ) -> None:
        self._records = records
        self.secrets: ServiceSecret = secrets or ServiceSecret()
        """The service's own; to be used through `credentials.Signatures`."""
        clock = clock or SystemClock()
        self.cache: KeyCache = KeyCache(records, clock)
        self.now: Callable[[], float] = self.cache.now
        self._tokens = Tokens(self.secrets, clock)

    # -- authentication -----------------------------------------------------------------------------

    def authenticate(self, header: str | None) -> Principal:
        """The owner of the key or token in an `Authorization` header.

        Raises `Unauthenticated`, and `BackendUnavailable` if the key may have been revoked meanwhile.
        """
        if not header:
            raise Unauthenticated("missing")
        credential = _credential_in(header)
        if credential.startswith(PREFIX):
            return self.owner_of(credential)
        return self._owner_of_token(credential)

    async def admit(self, header: str | None) -> Principal:
        """Like `authenticate`, but looks for an unknown key in the records, as it may be new."""
        return await self._find(lambda: self.authenticate(header))

    def owner_of(self, key: str) -> Principal:
        """The owner of a key. Raises like `authenticate`."""
        found = self.cache.get(id_of(key))
        matches = compare_digest(hashed(key), _NOBODY if found is None else found.digest)
        if found is None or not matches:
            raise Unauthenticated("unknown")
        return self._valid(found)

    def principal(self, key_id: str) -> Principal:
        """The owner of the key of that id. Raises like `authenticate`."""
        found = self.cache.get(key_id)
        if found is None:
            raise Unauthenticated("unknown")
        return self._valid(found)

    async def owner(self, key_id: str) -> Principal:
        """Like `principal`, but looks for an unknown key in the records, as it may be new."""
        return await self._find(lambda: self.principal(key_id))

    async def _find(self, look: Callable[[], Principal]) -> Principal:
        try:
            return look()
        except BackendUnavailable:
            pass  # this process may have been suspended
        except Unauthenticated as refusal:
            if refusal.reason != "unknown":
                raise
        await self.cache.catch_up()
        return look()

    def _owner_of_token(self, token: str) -> Principal:
        found = self._tokens.key_of(token)
        if found is None:
            raise Unauthenticated("unknown" if "." in token else "malformed")
        key_id, fresh = found
        principal = self.principal(key_id)
        if not fresh:
            raise Unauthenticated("expired")
        return principal

    def _valid(self, key: StoredKey) -> Principal:
        if key.revoked is not None or key.expires is not None:
            reason = key.ended(self.now())
            if reason:
                raise Unauthenticated(reason)
        if not self.cache.is_current:
            raise BackendUnavailable(_STALE)
        return key.principal

    def token(self, principal: Principal) -> str:
        """A token that is valid for a minute, and no longer than its key."""
        return self._tokens.issue(principal.key_id)

    def token_ends_at(self, header: str) -> float | None:
        """Until when the token in a header is accepted, in seconds since 1970; None for a key.

        Without a header, as of a session, it is None too. Raises `Unauthenticated` for a malformed one.
        """
        if not header:
            return None
        credential = _credential_in(header)
        return None if credential.startswith(PREFIX) else self._tokens.end_of(credential)

    # -- the keys -----------------------------------------------------------------------------------

    def key(self, key_id: str) -> StoredKey:
        """A key by its id, also one that has ended. Raises `UnknownKey`."""
        found = self.cache.get(key_id)
        if found is None:
            raise UnknownKey(key_id)
        return found

    def list(self) -> Sequence[StoredKey]:
        """All keys, oldest first, including keys that ended within `KEPT`."""
        return sorted(self.cache, key=lambda key: (key.created, key.id))

    def living(self) -> Sequence[StoredKey]:
        """The valid keys, oldest first."""
        now = self.now()
        return [key for key in self.list() if not key.ended(now)]

    def administrator(self) -> Principal | None:
        """The owner of the oldest valid key that administers everything."""
        owners = (key.principal for key in self.living())
        return next((each for each in owners if each.may_everywhere(Scope.ADMIN)), None)

    # -- changes, without any check of who asks -----------------------------------------------------

    async def create(
        self,
        name: str,
        scopes: Iterable[Scope],
        prefixes: Iterable[bytes],
        *,
        expires_in: float | None = None,
        by: str = "",
    ) -> tuple[Principal, str]:
        """Create a key; return its owner and its text, which is never shown again.

        Without prefixes it is valid for everything. Raises `ValueError` for an invalid name, and for no
        scope.
        """
        check_name(name)
        principal = Principal(new_key_id(), name, with_implied(scopes), reduced(prefixes))
        if not principal.scopes:
            raise ValueError(f"an API key needs at least one scope: {', '.join(Scope)}")
        return await self._add(principal, expires_in, by)

    async def first(self, name: str) -> tuple[Principal, str] | None:
        """Create an administrator's key, unless there is a key or another server creates one just now."""
        mark = await self._records.get(*_FIRST)
        await self.cache.refresh()  # whoever wrote the mark may have made its key since
        if self.living():
            return None
        principal = Principal(new_key_id(), name, with_implied({Scope.ADMIN}), reduced(()))
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
        async with self.cache.changing:
            await self.cache.put(StoredKey(principal, hashed(text), now, by, expires))
            for key in self.cache:
                if key.ended(now) and key.ended_since(now) > KEPT:
                    with suppress(Conflict):
                        await self.cache.remove(key)
        return principal, text

    async def revoke(self, key_id: str) -> StoredKey:
        """End a key, and its tokens, on all servers within two seconds. Raises `UnknownKey`.

        A server that cannot read the records finds the marker in the store, within `MAX_AGE`.
        """
        async with self.cache.changing:
            key = await self._recorded(key_id)
            while key.revoked is None:
                with suppress(Conflict):  # another server has changed it
                    key = await self.cache.put(replace(key, revoked=self.now()))
                    break
                key = await self._recorded(key_id)
        with suppress(DibsError):  # every server tries again each second
            await self.cache.leave_markers()
        return key

    async def _recorded(self, key_id: str) -> StoredKey:
        """A key as it is in the records now. Raises `UnknownKey`."""
        record = await self._records.get(KIND, key_id) if is_key_id(key_id) else None
        key = None if record is None else self.cache.read(record)
        if key is None:
            raise UnknownKey(key_id)
        return key


def _credential_in(header: str) -> str:
    """The key or token in an `Authorization` header. Raises `Unauthenticated`."""
    scheme, _, credential = header.partition(" ")
    if scheme.lower() != "bearer" or not credential.isascii():
        raise Unauthenticated("malformed")
    return credential.strip()


# ---- by administrators ----------------------------------------------------------------------------


class KeyRefused(Exception):
    """An administrator may not create this key. `kind` is `scope`, `prefix` or `limit`."""

    def __init__(
        self, kind: Literal["scope", "prefix", "limit"], message: str, prefix: bytes = b""
    ) -> None:
        super().__init__(message)
        self.kind: Literal["scope", "prefix", "limit"] = kind
        self.prefix: bytes = prefix
        """The directory that is not theirs; empty for everything."""


class KeyAdmin:
    """Creates and revokes keys for administrators, each time with a line in the audit log."""

    def __init__(self, keys: KeyService, audit: Audit) -> None:
        self._keys = keys
        self._audit = audit

    async def create(self, who: Principal, new: NewKey) -> KeyMade:
        """Create a key. Raises `ValueError` for an invalid one, and `KeyRefused`."""
        prefixes = reduced(map(read_prefix, new.prefixes))
        self._check(who, new.scopes, prefixes)
        principal, text = await self._keys.create(
            new.name, new.scopes, prefixes, expires_in=new.expires_in, by=who.name
        )
        try:
            await self._write(who, "key created", principal)
        except DibsError:  # the key was never shown
            with suppress(DibsError, UnknownKey):
                await self._keys.revoke(principal.key_id)
            raise
        return key_made(self._keys.key(principal.key_id), text)

    def _check(self, who: Principal, scopes: Iterable[Scope], prefixes: Iterable[bytes]) -> None:
        everywhere = who.may_everywhere(Scope.ADMIN)
        if Scope.ADMIN in scopes and not everywhere:  # its owner would have limits of their own
            raise KeyRefused(
                "scope", "only an administrator of everything may give out the scope admin"
            )
        for prefix in prefixes:
            if not who.may(Scope.ADMIN, prefix):
                message = (
                    "this API key administers only some directories: give prefixes within them"
                )
                raise KeyRefused("prefix", message, prefix)
        theirs = 0 if everywhere else len(self._visible(who))
        if theirs >= KEYS_EACH:
            raise KeyRefused(
                "limit",
                f"there are {theirs} keys in your directories, with those that ended lately",
            )

    async def revoke(self, who: Principal, key_id: str) -> StoredKey:
        """End a key. Raises `UnknownKey`, also for one that `who` may not see."""
        await self._keys.cache.refresh()
        key = self._keys.key(key_id)
        if not who.administers(key.principal.prefixes):
            raise UnknownKey(key_id)
        if key.revoked is not None:
            return key
        await self._write(who, "key revoked", key.principal)
        return await self._keys.revoke(key_id)

    async def list(self, who: Principal) -> Sequence[StoredKey]:
        """The keys that `who` may see, oldest first."""
        await self._keys.cache.refresh()
        return self._visible(who)

    def _visible(self, who: Principal) -> Sequence[StoredKey]:
        return [key for key in self._keys.list() if who.administers(key.principal.prefixes)]

    async def _write(self, who: Principal, what: AuditAction, about: Principal) -> None:
        detail = {
            "id": about.key_id,
            "name": about.name,
            "scopes": about.scope_texts,
            "prefixes": about.prefix_texts,
        }
        await self._audit.write(who, what, common_directory(about.prefixes), detail)
