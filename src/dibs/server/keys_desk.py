"""Where keys are given out and taken back: every time with a line in the audit."""

from collections.abc import Sequence
from contextlib import suppress

from dibs.errors import DibsError
from dibs.server.audit import Audit, What, common_directory
from dibs.server.keys import KeyRing, UnknownKey
from dibs.server.keys_document import Key
from dibs.server.keys_shapes import KeyMade, NewKey, made, prefixes_of, scopes_of
from dibs.server.principal import Principal, Scope
from dibs.server.scopes import covers, read_prefix, reduced

KEYS_EACH = 1_000
"""Keys within the directories of an administrator who is not one of everything."""


class Beyond(Exception):
    """An administrator of a directory may give out keys for that only: `prefix` lies elsewhere."""

    def __init__(self, prefix: bytes) -> None:
        super().__init__(prefix)
        self.prefix = prefix


class NotYours(Exception):
    """Only an administrator of everything may give out the scope `admin`."""


class TooMany(Exception):
    """There are as many keys in an administrator's directories as they may have."""


class Desk:
    """Gives keys out and takes them back, for administrators of everything or of a directory."""

    def __init__(self, keys: KeyRing, audit: Audit) -> None:
        self._keys = keys
        self._audit = audit

    async def create(self, who: Principal, new: NewKey) -> KeyMade:
        """Make a key.

        Raises `ValueError` for one that can't be, `Beyond` or `NotYours` for one that `who` may not make,
        and `TooMany`.
        """
        if Scope.ADMIN in new.scopes and not who.may_everywhere(Scope.ADMIN):
            raise NotYours  # theirs would count their keys and restrictions anew
        prefixes = reduced(map(read_prefix, new.prefixes))
        for prefix in prefixes:
            if not covers(who, (prefix,)):
                raise Beyond(prefix)
        if not who.may_everywhere(Scope.ADMIN):
            theirs = sum(covers(who, key.principal.prefixes) for key in self._keys.list())
            if theirs >= KEYS_EACH:
                raise TooMany(
                    f"there are {theirs} keys in your directories, with those that ended lately"
                )
        principal, text = await self._keys.create(
            new.name, new.scopes, prefixes, expires_in=new.expires_in, by=who.name
        )
        try:
            await self._write(who, "key created", principal)
        except DibsError:  # nobody has seen it, and nobody will
            with suppress(DibsError, UnknownKey):
                await self._keys.revoke(principal.key_id)
            raise
        return made(principal, text, self._keys.key(principal.key_id).expires)

    async def revoke(self, who: Principal, key_id: str) -> Key:
        """End a key. Raises `UnknownKey`, also for one that `who` may not see."""
        await self._keys.refresh()
        key = self._keys.key(key_id)
        if not covers(who, key.principal.prefixes):
            raise UnknownKey(key_id)
        if key.revoked is not None:
            return key
        await self._write(who, "key revoked", key.principal)
        return await self._keys.revoke(key_id)

    async def list(self, who: Principal) -> Sequence[Key]:
        """The keys that `who` may see, oldest first."""
        await self._keys.refresh()
        return [key for key in self._keys.list() if covers(who, key.principal.prefixes)]

    async def _write(self, who: Principal, what: What, about: Principal) -> None:
        detail = {
            "id": about.key_id,
            "name": about.name,
            "scopes": scopes_of(about),
            "prefixes": prefixes_of(about),
        }
        directory = common_directory(about.prefixes)
        await self._audit.write(who, what, directory, detail)
