"""Names, keys, and the fingerprint of a lease id."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal, get_args

from dibs.errors import InvalidName

type Kind = Literal["lock", "semaphore", "rwlock", "tasklock", "leader"]

KINDS: tuple[str, ...] = get_args(Kind.__value__)

MAX_NAME = 512

WAIT = b"wait:"
"""Prefix of the keys that `wait_key` makes, which name no resource."""

PROBE = b"lock:dibs/probe"
"""A key that nobody holds. Inspecting it costs one round trip and nothing else."""


def key_of(kind: Kind, name: str | bytes) -> bytes:
    """The key of a named resource: `{kind}:{name}`, so that kinds never meet.

    Raises `InvalidName` unless the name is 1..512 bytes; a str is its UTF-8. `TypeError` for what is
    neither str nor bytes, `ValueError` for an unknown kind.
    """
    if isinstance(name, str):
        raw = utf8(name)
    elif isinstance(name, bytes):
        raw = name
    else:
        raise TypeError(f"a name is a str or bytes, not {type(name).__name__}")
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: the kinds are {', '.join(KINDS)}")
    if not 1 <= len(raw) <= MAX_NAME:
        raise InvalidName(f"a name is 1 to {MAX_NAME} bytes long, and this one is {len(raw)}")
    return b"%b:%b" % (kind.encode(), raw)


def wait_key(lease: str) -> bytes:
    """Key under which the holder of a lease records what it waits for (`locks/deadlock.py`).

    `lease` is a fingerprint. Keys of this kind are not listed.
    """
    return WAIT + lease.encode()


def utf8(text: str) -> bytes:
    """Encode a text as UTF-8. Raises `InvalidName` if it is not valid Unicode."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidName(
            f"{text!r} is not valid Unicode: pass bytes for a name of any bytes"
        ) from error


def split_key(key: bytes) -> tuple[str, bytes]:
    """Split a key into its kind and its name."""
    kind, _, name = key.partition(b":")
    return kind.decode("ascii", "replace"), name


def shown(name: bytes) -> str:
    """Format a name for people. Bytes that are unprintable or not UTF-8 are escaped."""
    return printable(name.decode("utf-8", "backslashreplace"))


def printable(text: str) -> str:
    """Escape everything unprintable, so that a text cannot control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@lru_cache(maxsize=4096)  # a waiter asks several times
def fingerprint(lease_id: str) -> str:
    """The public name of a lease. Nobody can compute the id from it."""
    digest: str = _sha256()(lease_id.encode()).hexdigest()
    return digest[:24]


@cache
def _sha256() -> Callable[[bytes], Any]:
    """Import late: this loads OpenSSL, which an uncontended shell command does not need."""
    from hashlib import sha256

    return sha256
