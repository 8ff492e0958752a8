"""The guard for Redis: a command, and the check of the token before it, in one script."""

from functools import cache
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from dibs.fencing.stamp import Stamp, Stamped, stale, stamp_of

PREFIX = "dibs:fence:"


class _Guarded:
    """The script, as a client of redis-py's has it; of either world."""

    _wants_async: bool
    _advice: str

    def __init__(self, client: Any, *, prefix: str = PREFIX) -> None:
        if iscoroutinefunction(client.execute_command) is not self._wants_async:
            raise TypeError(f"{client!r} is of the other world: {self._advice}")
        self._script = client.register_script(_lua())
        self._prefix = prefix

    def _said(
        self, stamp: Stamp, command: str, key: Any, arguments: tuple[Any, ...]
    ) -> dict[str, Any]:
        fences = [f"{self._prefix}{stamp.text}#{slot}" for slot in stamp.slots]
        return {"keys": [*fences, key], "args": [stamp.token, command, *arguments]}


class RedisFence(_Guarded):
    """Refuses stale writes to Redis or Valkey, by a client of redis-py's.

    Beside your keys it keeps one for each lease, `dibs:fence:…`, with the highest token seen; it never
    expires. On a Cluster those and your keys have to be in one slot, so give a `prefix` with their hash
    tag: `"{cart:42}:fence:"`.
    """

    _wants_async = False
    _advice = "for redis.asyncio it is AsyncRedisFence"

    def call(self, by: Stamped, command: str, key: str | bytes, *arguments: Any) -> Any:
        """Let whoever holds the lease call one command, whose first argument is its one key.

        `fence.call(lease, "SET", "cart:42:state", "paid")`. Returns the command's reply, as it was sent.
        Raises `StaleToken` if a higher token was seen; then nothing has happened.
        """
        stamp = stamp_of(by)
        return _told(stamp, self._script(**self._said(stamp, command, key, arguments)))


class AsyncRedisFence(_Guarded):
    """As `RedisFence`, by a client of `redis.asyncio`."""

    _wants_async = True
    _advice = "for a blocking client it is RedisFence"

    async def call(self, by: Stamped, command: str, key: str | bytes, *arguments: Any) -> Any:
        """As `RedisFence.call`. Cancelled, it may have happened or not."""
        stamp = stamp_of(by)
        return _told(stamp, await self._script(**self._said(stamp, command, key, arguments)))


@cache
def _lua() -> str:
    return Path(__file__).with_name("guarded.lua").read_text("utf-8")


def _told(stamp: Stamp, reply: Any) -> Any:
    """The command's reply. Raises `StaleToken` where it was not called."""
    what, *rest = reply
    if what in (b"done", "done"):
        return rest[0] if rest else None
    slot, seen = rest
    raise stale(stamp.key, stamp.slots[int(slot) - 1], stamp.token, int(seen))
