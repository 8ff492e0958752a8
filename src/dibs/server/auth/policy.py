"""Permissions of API keys: scopes, and the directories in which they apply."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dibs.core.names import MAX_NAME, utf8
from dibs.stores.http.names import MARK, decoded, encoded

EVERYTHING = (b"",)
"""The prefixes of a key that is not limited to directories."""

MAX_PREFIXES = 64
"""Directories of one key."""


class Scope(StrEnum):
    """A permission of a key. Each scope includes `READ`."""

    READ = "read"
    ACQUIRE = "acquire"
    """Acquire, renew, release, resize."""
    FORCE = "force"
    """End other people's leases."""
    ADMIN = "admin"
    """All of that, restrictions, placements, keys, and the audit log."""


IMPLIED = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.ACQUIRE: frozenset({Scope.READ, Scope.ACQUIRE}),
    Scope.FORCE: frozenset({Scope.READ, Scope.FORCE}),
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of an API key.

    `prefixes` are directories of any depth, each with its slash at the end; `b""` is everything.
    """

    key_id: str
    name: str
    scopes: frozenset[Scope]
    """Including implied scopes."""
    prefixes: tuple[bytes, ...]

    def may(self, scope: Scope, name: bytes) -> bool:
        """Whether it has the scope for the lock, or the directory, of that name."""
        return scope in self.scopes and name.startswith(self.prefixes)

    def may_somewhere(self, scope: Scope) -> bool:
        """Whether it has the scope for anything at all."""
        return scope in self.scopes and bool(self.prefixes)

    def may_everywhere(self, scope: Scope) -> bool:
        """Whether it has the scope for everything."""
        return self.may(scope, b"")

    def administers(self, prefixes: Iterable[bytes]) -> bool:
        """Whether it is an administrator of all these directories."""
        return all(self.may(Scope.ADMIN, prefix) for prefix in prefixes)

    @property
    def scope_texts(self) -> tuple[str, ...]:
        """The scopes, the least powerful first."""
        return tuple(scope.value for scope in Scope if scope in self.scopes)

    @property
    def prefix_texts(self) -> tuple[str, ...]:
        """The directories as `read_prefix` reads them. Empty means everything."""
        return () if self.prefixes == EVERYTHING else tuple(map(write_prefix, self.prefixes))


class BrowserSession(NamedTuple):
    """The content of a browser's session cookie."""

    key_id: str
    """The key that the session is bound to: it ends with it, and may do what the key may."""
    expires_at: int
    """Seconds since 1970."""
    nonce: str
    """Tells the sessions of a key apart."""


def with_implied(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Add the implied scopes."""
    return frozenset[Scope]().union(*(IMPLIED[scope] for scope in scopes))


def read_prefix(text: str) -> bytes:
    """A directory, with a slash at its end, which is added if it is missing.

    `base64:…` stands for any bytes. `/` is refused: it would only be the names that begin with a slash, and
    people mean everything (`base64:Lw` is the former). Raises `ValueError` for an invalid directory.
    """
    raw = _raw(text)
    if not raw or text == "/":
        raise ValueError("a prefix is a directory such as shop/: leave it out for everything")
    found = raw if raw.endswith(b"/") else raw + b"/"
    if len(found) > MAX_NAME:
        raise ValueError(f"a directory is {MAX_NAME} bytes long at most, with its slash")
    return found


def _raw(text: str) -> bytes:
    if not text.startswith(MARK):
        return utf8(text)
    try:
        return decoded(text.removeprefix(MARK))
    except ValueError as error:
        raise ValueError(f"{text!r} is {error}") from None


def write_prefix(prefix: bytes) -> str:
    """A directory as `read_prefix` reads it."""
    try:
        text = prefix.decode()
    except UnicodeDecodeError:
        return MARK + encoded(prefix)
    is_plain = text.isprintable() and not text.startswith(MARK) and text != "/"
    return text if is_plain else MARK + encoded(prefix)


def reduced(prefixes: Iterable[bytes]) -> tuple[bytes, ...]:
    """Directories in order, without those inside another one; everything if there are none.

    Raises `ValueError` for more than `MAX_PREFIXES`.
    """
    kept: list[bytes] = []
    for prefix in sorted(set(prefixes)):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    if len(kept) > MAX_PREFIXES:
        raise ValueError(f"a key is good for {MAX_PREFIXES} directories at most, not {len(kept)}")
    return tuple(kept) or EVERYTHING
