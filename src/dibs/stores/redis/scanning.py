"""Listing what is in use, a page at a time, in the order of the keys' bytes."""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import takewhile
from math import inf

from dibs.model import Command, Inspect, Page, Reply, Status
from dibs.stores.redis.connection import HiredisError, Link, ReplyError, pack
from dibs.stores.redis.errors import broken, explain
from dibs.stores.redis.ledger import MATCH_ALL, ledger_key

COUNT = 1000
"""So many slots of its table the server looks at in one go."""

CHUNK = 64
"""So many keys are inspected in one call, that others may have their turn."""

FRESH = 30.0
"""How long the pages that follow go by what the first one found, in seconds."""


async def names_on(link: Link) -> set[bytes]:
    """The names of all books on one server; the connection was made for this, and is closed."""
    found: set[bytes] = set()
    cursor = b"0"
    try:
        while True:
            question = pack((b"SCAN", cursor, b"MATCH", MATCH_ALL, b"COUNT", COUNT))
            (answer,) = await link.ask(question)
            if isinstance(answer, ReplyError):
                raise explain(answer, link.endpoint)
            cursor, names = answer
            found.update(names)
            if cursor == b"0":
                return found
    except (OSError, HiredisError) as error:
        raise broken(error, link.endpoint) from error
    finally:
        link.close()


class Listings:
    """The sorted keys that a scan has found, so that the pages after it need no search of the store."""

    def __init__(self) -> None:
        self._began = -inf
        self._keys: list[bytes] = []

    def find(self, prefix: bytes, cursor: bytes) -> list[bytes] | None:
        """The keys of a prefix that come after `cursor`; None if the last scan was too long ago."""
        if time.monotonic() - self._began > FRESH:
            return None
        return self._after(prefix, cursor)

    def keep(self, prefix: bytes, cursor: bytes, keys: Iterable[bytes]) -> list[bytes]:
        """Remember all keys that a scan has found; those of a prefix that come after `cursor`."""
        self._began, self._keys = time.monotonic(), sorted(keys)
        return self._after(prefix, cursor)

    def _after(self, prefix: bytes, cursor: bytes) -> list[bytes]:
        keys = self._keys
        first = max(bisect_left(keys, prefix), bisect_right(keys, cursor))
        return list(takewhile(lambda key: key.startswith(prefix), keys[first:]))


type Apply = Callable[[Sequence[Command]], Awaitable[Sequence[Reply]]]


async def scan(
    listings: Listings,
    names: Callable[[], Awaitable[Iterable[bytes]]],
    apply: Apply,
    prefix: bytes,
    cursor: bytes | None,
    limit: int,
) -> Page:
    """The next keys that are held or waited for."""
    keys = None if cursor is None else listings.find(prefix, cursor)
    if keys is None:
        everything = (ledger_key(name) for name in await names())
        keys = listings.keep(prefix, cursor or b"", (key for key in everything if key is not None))
    items: list[Status] = []
    done = 0
    while done < len(keys) and len(items) < limit:
        chunk = keys[done : done + min(CHUNK, limit - len(items))]
        replies = await apply([Inspect(key) for key in chunk])
        items += [r for r in replies if isinstance(r, Status) and (r.holders or r.waiters)]
        done += len(chunk)
    return Page(items, keys[done - 1] if done < len(keys) else None)
