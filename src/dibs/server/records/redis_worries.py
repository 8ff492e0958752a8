"""Whether a Redis is one to leave records with: it is asked at each start of a server."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dibs.backends.redis.examining import facts_of, setting_of

FORGETS = (
    "This Redis does not persist data. A restart loses all API keys, restrictions and directory "
    'placements. Set "appendonly yes" in Redis, or use --records postgresql://…'
)
EVICTS = (
    "This Redis can evict API keys, restrictions and directory placements (maxmemory-policy {policy}). "
    'Set "maxmemory-policy noeviction" in Redis, or use --records postgresql://…'
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
