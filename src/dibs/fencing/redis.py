"""The guard for Redis: a command, and the check of the token before it, in one script."""

from functools import cache
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from dibs.fencing.stamp import Stamp, Stamped, stale, stamp_of

PREFIX = "dibs:fence:"


class RedisFence:
    """Refuses stale writes to Redis or Valkey, by a client of redis-py's.

    Beside your keys it keeps one for each lease, `dibs:fence:…`, with the highest token seen; it never
    expires. On a Cluster those and your keys have to be in one slot, so give a `prefix` with their hash
    tag: `"{cart:42}:fence:"`.
    """

    def __init__(self, client: Any, *, prefix: str = PREFIX) -> None:
        if iscoroutinefunction(client.execute_command):
            raise TypeError(f"{client!r} is a client for asyncio: use AsyncRedisFence")
        self._script = client.register_script(_lua())
        self._prefix = prefix

    def call(self, by: Stamped, command: str, key: str | bytes, *arguments: Any) -> Any:
        """Call one command under the lease. Its first argument is its only key.

        `fence.call(lease, "SET", "cart:42:state", "paid")`. Returns the command's reply, as it was sent.
        Raises `StaleToken` if a higher token was seen; then nothing has happened.
        """
        stamp = stamp_of(by)
        return _result(stamp, self._script(**_call(self._prefix, stamp, command, key, arguments)))


class AsyncRedisFence:
    """`RedisFence` for a client of `redis.asyncio`."""

    def __init__(self, client: Any, *, prefix: str = PREFIX) -> None:
        if not iscoroutinefunction(client.execute_command):
            raise TypeError(f"{client!r} is a blocking client: use RedisFence")
        self._script = client.register_script(_lua())
        self._prefix = prefix

    async def call(self, by: Stamped, command: str, key: str | bytes, *arguments: Any) -> Any:
        """Call one command: see `RedisFence.call`. After a cancellation it has happened or not."""
        stamp = stamp_of(by)
        return _result(
            stamp, await self._script(**_call(self._prefix, stamp, command, key, arguments))
        )


def _call(
    prefix: str, stamp: Stamp, command: str, key: Any, arguments: tuple[Any, ...]
) -> dict[str, Any]:
    fences = [f"{prefix}{stamp.text}#{slot}" for slot in stamp.slots]
    return {"keys": [*fences, key], "args": [stamp.token, command, *arguments]}


@cache
def _lua() -> str:
    return Path(__file__).with_name("guarded.lua").read_text("utf-8")


def _result(stamp: Stamp, reply: Any) -> Any:
    """The command's reply. Raises `StaleToken` where it was not called."""
    what, *rest = reply
    if what in (b"done", "done"):
        return rest[0] if rest else None
    slot, seen = rest
    raise stale(stamp.key, stamp.slots[int(slot) - 1], stamp.token, int(seen))
