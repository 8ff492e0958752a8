"""Keys as they are told: over HTTP and by the command line. Never with what their owners bring."""

from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct

from dibs.server.keys_document import Key
from dibs.server.principal import Principal, Scope
from dibs.server.scopes import EVERYTHING, written

MAX_NAME = 128

MAX_LIFE = 100 * 366 * 86400.0
"""Seconds that a key may be good for, where an end is set to it."""


class NewKey(Struct, forbid_unknown_fields=True, frozen=True):
    """What a key is to be good for."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    """For people, such as ci-deploy."""
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=len(Scope))]
    prefixes: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    """Directories, `base64:…` for those of any bytes; none: it is good for everything."""
    expires_in: Annotated[float, Meta(gt=0, le=MAX_LIFE)] | None = None
    """Seconds until it is good no more; none: it is good until it is revoked."""


class KeyShown(Struct, frozen=True):
    """A key, by its id."""

    id: str
    name: str
    scopes: tuple[str, ...]
    """With what they imply."""
    prefixes: tuple[str, ...]
    """None: everything."""
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    good: bool
    """Neither expired nor revoked."""


class KeyMade(Struct, frozen=True):
    """A new key: `key` is told this once."""

    id: str
    key: str
    name: str
    scopes: tuple[str, ...]
    prefixes: tuple[str, ...]
    expires_at: str | None = None


class KeyList(Struct, frozen=True):
    """Keys, oldest first."""

    keys: tuple[KeyShown, ...]


def check_name(name: str) -> None:
    """Raises `ValueError` for what no key can be called."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable() or name.strip() != name:
        raise ValueError(f"a key's name is 1 to {MAX_NAME} printable characters, such as ci-deploy")


def shown(key: Key, now: float) -> KeyShown:
    """A key, as it may be told."""
    return KeyShown(
        key.id,
        key.principal.name,
        scopes_of(key.principal),
        prefixes_of(key.principal),
        moment(key.created) or "",
        key.by,
        moment(key.expires),
        moment(key.revoked),
        not key.ended(now),
    )


def made(principal: Principal, text: str, expires: float | None) -> KeyMade:
    """What its maker is told."""
    scopes, prefixes = scopes_of(principal), prefixes_of(principal)
    return KeyMade(principal.key_id, text, principal.name, scopes, prefixes, moment(expires))


def scopes_of(principal: Principal) -> tuple[str, ...]:
    """Its scopes, from the least on."""
    return tuple(scope.value for scope in Scope if scope in principal.scopes)


def prefixes_of(principal: Principal) -> tuple[str, ...]:
    """Its directories; none where it is good for everything."""
    if principal.prefixes == EVERYTHING:
        return ()
    return tuple(map(written, principal.prefixes))


def moment(at: float | None) -> str | None:
    """A time as people write it, in UTC."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
