"""Names, keys, and what may be shown of a lease's secret id."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal, get_args

from dibs.errors import InvalidName

type Kind = Literal["lock", "semaphore", "rwlock", "tasklock", "leader"]

KINDS: tuple[str, ...] = get_args(Kind.__value__)

MAX_NAME = 512

WAIT = b"wait:"
"""What keys begin with that name no resource: those of `wait_key`."""

PROBE = b"lock:dibs/probe"
"""A key that nobody holds; looking at it takes a round trip and nothing else."""


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
    """Where the holder of a lease, named by its fingerprint, tells that it waits for something else.

    Of a kind of its own that is in no list: see `locks/deadlock.py`.
    """
    return WAIT + lease.encode()


def utf8(text: str) -> bytes:
    """A text's bytes. Raises `InvalidName` for one that is no Unicode."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidName(
            f"{text!r} is not valid Unicode: pass bytes for a name of any bytes"
        ) from error


def split_key(key: bytes) -> tuple[str, bytes]:
    """The kind and the name that make up a key."""
    kind, _, name = key.partition(b":")
    return kind.decode("ascii", "replace"), name


def shown(name: bytes) -> str:
    """A name as people may see it: UTF-8, with what is unprintable or no UTF-8 escaped."""
    return printable(name.decode("utf-8", "backslashreplace"))


def printable(text: str) -> str:
    """A text that can't move a terminal's cursor or hide anything: what is unprintable is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@lru_cache(maxsize=4096)  # whoever waits asks several times
def fingerprint(lease_id: str) -> str:
    """What a lease is called in public; its id can't be told from it."""
    digest: str = _sha256()(lease_id.encode()).hexdigest()
    return digest[:24]


@cache
def _sha256() -> Callable[[bytes], Any]:
    """Loads OpenSSL, which an uncontended shell command never needs."""
    from hashlib import sha256

    return sha256
