"""The error for a write that came too late."""

from typing import Any

from dibs.core.names import KINDS, shown, split_key
from dibs.errors import DibsError


class StaleToken(DibsError):
    """Somebody with a higher token has written since: the lease is another's, so give up.

    `token` is that of the write that was refused, `seen` the highest one that the resource knows.
    """

    def __init__(self, message: str = "", *, token: int = 0, seen: int = 0, **about: Any) -> None:
        super().__init__(message, **about)
        self.token = token
        self.seen = seen


def stale(key: bytes, slot: int, token: int, seen: int) -> StaleToken:
    """The error for a token on a key and slot, where the resource has seen a higher one."""
    return StaleToken(
        f"token {token} of {_told(key, slot)} is stale: token {seen} was seen since, so somebody else has "
        "got the lease; nothing was written, and what is left to do is theirs",
        key=key,
        token=token,
        seen=seen,
    )


def _told(key: bytes, slot: int) -> str:
    kind, name = split_key(key)
    told = f"{kind} {shown(name)}" if kind in KINDS else shown(key)
    return f"{told}, slot {slot}" if slot else told
