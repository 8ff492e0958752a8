"""Whether a Redis is one to leave records with: it is asked at each start of a server."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dibs.backends.redis.examining import facts_of, setting_of

FORGETS = (
    "this Redis writes no append-only file, so after its restart every key, every restriction and where "
    "directories live are gone, or as they were long ago: set `appendonly yes` there, or name another place "
    "for them, with records="
)
EVICTS = (
    "this Redis throws out what it has no room for (maxmemory-policy {policy}), and so perhaps a key, or "
    "where directories live: set `maxmemory-policy noeviction` there, or name another place for them, with "
    "records="
)


async def worries(ask: Callable[..., Awaitable[Any]]) -> Sequence[str]:
    """What it may do to records, as far as its user may know."""
    facts = facts_of(await ask(b"INFO", b"everything", again=True))
    if not facts:
        return ()
    asked = await ask(b"CONFIG", b"GET", b"maxmemory-policy", again=True)
    policy = setting_of(asked) or facts.get("maxmemory_policy", "noeviction")
    found = [] if facts.get("aof_enabled") == "1" else [FORGETS]
    if policy != "noeviction" and facts.get("maxmemory", "0") != "0":
        found.append(EVICTS.format(policy=policy))
    return found
