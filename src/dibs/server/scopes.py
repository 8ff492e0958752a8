"""Scopes and directories as people write them."""

from collections.abc import Iterable

from dibs.core.names import MAX_NAME, utf8
from dibs.server.principal import IMPLIED, Principal, Scope
from dibs.stores.http.names import MARK, decoded, encoded

EVERYTHING = (b"",)
"""The prefixes of a key without bounds."""

MAX_PREFIXES = 64


def read_scopes(given: Iterable[str]) -> frozenset[Scope]:
    """Scopes by their words; several may stand in one, separated by commas.

    Raises `ValueError` for a word that is none, and for none at all: a key is good for what it says,
    and for nothing else.
    """
    words = [word.strip().lower() for text in given for word in text.split(",") if word.strip()]
    known = ", ".join(Scope)
    if not words:
        raise ValueError(f"a key needs a scope: {known}")
    for word in words:
        if word not in set(Scope):
            raise ValueError(f"{word!r} is no scope: there are {known}")
    return frozenset(map(Scope, words))


def with_implied(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """The scopes, and those that come with them."""
    return frozenset[Scope]().union(*(IMPLIED[scope] for scope in scopes))


def read_prefix(text: str) -> bytes:
    """A directory, with its slash at the end, which is added where it is missing.

    `base64:…` is one of any bytes. Raises `ValueError` for what is no directory.
    """
    raw = _raw(text)
    if not raw:
        raise ValueError("a prefix is a directory such as shop/: leave it out for everything")
    found = raw if raw.endswith(b"/") else raw + b"/"
    if len(found) > MAX_NAME:
        raise ValueError(f"a directory is {MAX_NAME} bytes long at most, with its slash")
    return found


def lacks_slash(text: str) -> bool:
    """Whether `read_prefix` adds a slash to it."""
    return not _raw(text).endswith(b"/")


def _raw(text: str) -> bytes:
    if not text.startswith(MARK):
        return utf8(text)
    try:
        return decoded(text.removeprefix(MARK))
    except ValueError as error:
        raise ValueError(f"{text!r} is {error}") from None


def reduced(prefixes: Iterable[bytes]) -> tuple[bytes, ...]:
    """Directories in order, less those that lie in another; without any, everything."""
    kept: list[bytes] = []
    for prefix in sorted(set(prefixes)):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    if len(kept) > MAX_PREFIXES:
        raise ValueError(f"a key is good for {MAX_PREFIXES} directories at most, not {len(kept)}")
    return tuple(kept) or EVERYTHING


def written(prefix: bytes) -> str:
    """A directory as `read_prefix` reads it."""
    try:
        text = prefix.decode()
    except UnicodeDecodeError:
        return MARK + encoded(prefix)
    return text if text.isprintable() and not text.startswith(MARK) else MARK + encoded(prefix)


def covers(principal: Principal, prefixes: Iterable[bytes]) -> bool:
    """Whether it is an administrator of all these directories."""
    return all(principal.may(Scope.ADMIN, prefix) for prefix in prefixes)
