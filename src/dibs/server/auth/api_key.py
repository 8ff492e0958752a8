"""An API key: its record, and how people see it. Neither contains the text that its owner sends."""

from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct, json
from msgspec.structs import replace

from dibs.server.auth.policy import MAX_PREFIXES, Principal, Scope, with_implied
from dibs.server.records.port import Record

KIND = "key"
"""The kind of the records."""

FORMAT = 1
"""The format of the records."""

MAX_NAME = 128
"""Characters of a key's name."""

MAX_LIFE = 100 * 366 * 86400.0
"""Seconds of the longest `expires_in`."""


class StoredKey(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An API key as the service stores it, without its text. Times are seconds since 1970."""

    principal: Principal
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """The hash of its text."""
    created: float
    by: str
    """The creator's name, for people."""
    expires: float | None = None
    revoked: float | None = None
    version: int = 0
    """The version of its record."""

    @property
    def id(self) -> str:
        return self.principal.key_id

    def ended(self, now: float) -> str:
        """Why it is not valid any more, `revoked` or `expired`; empty if it is valid."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else ""

    def ended_since(self, now: float) -> float:
        """Seconds since it was revoked or expired."""
        ends = [end for end in (self.revoked, self.expires) if end is not None]
        return now - min(ends, default=now)


class _Document(Struct):
    """The JSON of a record."""

    format: int
    key: StoredKey


def write_key(key: StoredKey) -> bytes:
    """The value of a key's record."""
    return json.encode(_Document(FORMAT, replace(key, version=0)))


def read_key(record: Record) -> StoredKey:
    """The key in a record. Raises `ValueError` for an invalid one, or one of a newer release."""
    found = json.decode(record.value, type=_Document)
    if found.format != FORMAT:
        raise ValueError(f"it has format {found.format}, and this release reads {FORMAT}")
    owner = found.key.principal
    if not owner.prefixes or any(each and not each.endswith(b"/") for each in owner.prefixes):
        raise ValueError("it has invalid prefixes")
    if owner.key_id != record.name:
        raise ValueError("it is a copy of another key")
    principal = Principal(owner.key_id, owner.name, with_implied(owner.scopes), owner.prefixes)
    return replace(found.key, principal=principal, version=record.version)


def check_name(name: str) -> None:
    """Raise `ValueError` for an invalid name of a key."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable() or name.strip() != name:
        raise ValueError(f"a key's name is 1 to {MAX_NAME} printable characters, such as ci-deploy")


# ---- over HTTP and in the command line ------------------------------------------------------------


class NewKey(Struct, forbid_unknown_fields=True, frozen=True):
    """A key to be created."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    """For people, such as ci-deploy."""
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=len(Scope))]
    prefixes: Annotated[tuple[str, ...], Meta(max_length=MAX_PREFIXES)] = ()
    """Directories, as `base64:…` if they are not text. None means everything."""
    expires_in: Annotated[float, Meta(gt=0, le=MAX_LIFE)] | None = None
    """Seconds until the key expires. None means that it does not."""


class KeyShown(Struct, frozen=True):
    """A key, by its id."""

    id: str
    name: str
    scopes: tuple[str, ...]
    """Including implied scopes."""
    prefixes: tuple[str, ...]
    """None means everything."""
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    good: bool
    """Neither expired nor revoked."""


class KeyMade(Struct, frozen=True):
    """A new key: `key` is returned only once."""

    id: str
    key: str
    name: str
    scopes: tuple[str, ...]
    prefixes: tuple[str, ...]
    expires_at: str | None = None


class KeyList(Struct, frozen=True):
    """Keys, oldest first."""

    keys: tuple[KeyShown, ...]


def key_shown(key: StoredKey, now: float) -> KeyShown:
    """A key as people see it."""
    principal = key.principal
    return KeyShown(
        id=key.id,
        name=principal.name,
        scopes=principal.scope_texts,
        prefixes=principal.prefix_texts,
        created_at=utc_time(key.created),
        created_by=key.by,
        expires_at=None if key.expires is None else utc_time(key.expires),
        revoked_at=None if key.revoked is None else utc_time(key.revoked),
        good=not key.ended(now),
    )


def key_made(key: StoredKey, text: str) -> KeyMade:
    """A new key as its creator sees it."""
    principal = key.principal
    return KeyMade(
        id=key.id,
        key=text,
        name=principal.name,
        scopes=principal.scope_texts,
        prefixes=principal.prefix_texts,
        expires_at=None if key.expires is None else utc_time(key.expires),
    )


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # an offset takes as long to write as all the rest


def utc_time(at: float, timespec: str = "seconds") -> str:
    """Seconds since 1970 as RFC 3339 in UTC. `timespec`: as for `datetime.isoformat`."""
    return (_EPOCH + timedelta(seconds=at)).isoformat(timespec=timespec) + "Z"
