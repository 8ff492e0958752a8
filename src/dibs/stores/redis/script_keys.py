"""How a ledger's key is called in Redis, and the way back."""

from functools import lru_cache

PREFIX = b"dibs:{"

EPOCH = b"dibs:epoch"
"""The key that is missing from a server that came back empty."""

MATCH_ALL = b"dibs:{*}"
"""The keys that carry a book: all else of a resource has a suffix behind the brace."""

_NOTHING = b"%"


@lru_cache(4096)
def store_key(key: bytes) -> bytes:
    """All of it is the hash tag, so everything of one resource is in one slot of a Cluster.

    The tag ends with the first closing brace, and an empty one is no tag, so these are escaped.
    """
    if b"}" in key or b"%" in key or not key:
        key = key.replace(b"%", b"%25").replace(b"}", b"%7D") or _NOTHING
    return b"dibs:{%b}" % key


@lru_cache(4096)
def ledger_key(name: bytes) -> bytes | None:
    """The way back; None for a Redis key that carries no book of ours."""
    tag = name[len(PREFIX) : -1]
    key = b"" if tag == _NOTHING else tag.replace(b"%7D", b"}").replace(b"%25", b"%")
    return key if store_key(key) == name else None
