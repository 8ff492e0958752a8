"""The stamp of a write: the key of a lease, its fencing token, and its slots."""

from typing import Any, NamedTuple, Protocol
from urllib.parse import quote_from_bytes

from dibs.core.names import KINDS, shown, split_key
from dibs.errors import DibsError

LARGEST = 2**53
"""Tokens are below it, so that every language and store can compare them."""

PLAIN = "/:@,=+ -._"
"""Besides letters and digits, what is itself in a key's text."""


class Stampable(Protocol):
    """A lease, as far as its stamp goes."""

    @property
    def key(self) -> bytes: ...

    @property
    def token(self) -> int: ...

    @property
    def slots(self) -> tuple[int, ...]: ...


type Stamped = Stampable | tuple[str | bytes, int] | tuple[str | bytes, int, int]
"""Who writes: a lease, or `(key, token)`, or `(key, token, slot)`. A lease's key is `b"lock:order:42"`."""


class Stamp(NamedTuple):
    """A write's key, token, and the slots that it is for: at least one."""

    key: bytes
    token: int
    slots: tuple[int, ...]

    @property
    def text(self) -> str:
        """The key as a text that is another one for every other key."""
        return quote_from_bytes(self.key, safe=PLAIN)


def stamp_of(by: Stamped) -> Stamp:
    """The stamp of a write by `by`.

    A lease without numbered slots, as a writer's, is for slot 0. Raises `TypeError` for what is no lease
    and no tuple of that shape, and for a reader's lease or another of several without slots; `ValueError`
    for a token or slot that can't be one.
    """
    if isinstance(by, tuple):
        key, token, slots = _parts(by)
    else:
        try:
            key, token, slots = by.key, by.token, tuple(by.slots) or (0,)
        except AttributeError:
            raise TypeError(f"{by!r} is no lease: give one, or (key, token, slot)") from None
        if getattr(by, "mode", "") == "read" or (key.startswith(b"semaphore:") and not by.slots):
            raise TypeError(
                f"{by!r} is held beside others, and a fence would refuse all but the newest of them: write "
                "under a Lock, an RWLock's write(), or a Semaphore of at most 1,024 units"
            )
    if type(token) is not int or not 0 < token < LARGEST:
        raise ValueError(f"the token is {token!r}: give lease.token, an int from 1 to 2**53 - 1")
    for slot in slots:
        if type(slot) is not int or not 0 <= slot < 2**31:
            raise ValueError(f"the slot is {slot!r}: give one of lease.slots, an int of at least 0")
    return Stamp(key, token, slots)


def _parts(by: tuple[object, ...]) -> tuple[bytes, int, tuple[int, ...]]:
    match by:
        case (str() | bytes() as key, token) if key:
            slot: object = 0
        case (str() | bytes() as key, token, slot) if key:
            pass
        case _:
            raise TypeError(f"{by!r} is neither a lease nor (key, token) nor (key, token, slot)")
    raw = key.encode() if isinstance(key, str) else key
    if raw.partition(b":")[0].decode("ascii", "replace") not in KINDS or b":" not in raw:
        raise ValueError(
            f"the key is {key!r}: give lease.key, which begins with its kind, as lock:order:42 does, or "
            "nobody else would compare with it"
        )
    return raw, token, (slot,)  # type: ignore[return-value]  # the caller looks at what they are


class StaleToken(DibsError):
    """A holder with a higher token has written since, so this one must give up.

    `token` is that of the write that was refused, `seen` the highest one that the resource knows.
    """

    def __init__(self, message: str = "", *, token: int = 0, seen: int = 0, **about: Any) -> None:
        super().__init__(message, **about)
        self.token: int = token
        self.seen: int = seen


def stale(key: bytes, slot: int, token: int, seen: int) -> StaleToken:
    """The error for a token on a key and slot, where the resource has seen a higher one."""
    return StaleToken(
        f"token {token} of {_described(key, slot)} is stale: the resource has already seen token {seen}, so "
        "another holder has the lease. Nothing was written; leave the rest of the work to that holder",
        key=key,
        token=token,
        seen=seen,
    )


def _described(key: bytes, slot: int) -> str:
    kind, name = split_key(key)
    text = f"{kind} {shown(name)}" if kind in KINDS else shown(key)
    return f"{text}, slot {slot}" if slot else text
