"""Listing what is in use, a page at a time, in the order of the keys' bytes."""

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import takewhile
from math import inf
from time import monotonic

from dibs.model import Command, Inspect, Page, Reply, Status
from dibs.stores.redis.connection import HiredisError, Link, ReplyError, pack
from dibs.stores.redis.errors import broken, explain
from dibs.stores.redis.ledger import MATCH_ALL, ledger_key

COUNT = 1000
"""Slots of its table that the server looks at in one go."""

CHUNK = 64
"""Keys that are inspected in one call, so that others have their turn."""

FRESH = 30.0
"""Seconds for which the pages that follow go by what the first one found."""


class Listings:
    """The sorted keys that a scan has found, so that the pages after it need no search of the store."""

    def __init__(self) -> None:
        self._began = -inf
        self._keys: list[bytes] = []

    async def keys(
        self,
        names: Callable[[], Awaitable[Iterable[bytes]]],
        prefix: bytes,
        cursor: bytes | None,
    ) -> list[bytes]:
        """Return the keys of a prefix that come after `cursor`."""
        if cursor is None or monotonic() - self._began > FRESH:
            found = map(ledger_key, await names())
            self._began, self._keys = monotonic(), sorted(key for key in found if key is not None)
        first = bisect_left(self._keys, prefix)
        if cursor is not None:
            first = max(first, bisect_right(self._keys, cursor))
        return list(takewhile(lambda key: key.startswith(prefix), self._keys[first:]))


async def scan(
    keys: Sequence[bytes],
    apply: Callable[[Sequence[Command]], Awaitable[Sequence[Reply]]],
    limit: int,
) -> Page:
    """Return a page of those keys that are held or waited for."""
    items: list[Status] = []
    done = 0
    while done < len(keys) and len(items) < limit:
        chunk = keys[done : done + min(CHUNK, limit - len(items))]
        replies = await apply([Inspect(key) for key in chunk])
        items += [r for r in replies if isinstance(r, Status) and (r.holders or r.waiters)]
        done += len(chunk)
    return Page(items, keys[done - 1] if done < len(keys) else None)


async def names_on(link: Link, limit: float) -> set[bytes]:
    """The names of all books on one server; the connection was made for this, and is closed.

    Each answer must come within `limit` seconds.
    """
    found: set[bytes] = set()
    cursor = b"0"
    try:
        while True:
            question = pack((b"SCAN", cursor, b"MATCH", MATCH_ALL, b"COUNT", COUNT))
            (answer,) = await link.ask(question, 1, limit)
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
