"""Which node of a Cluster serves which slot."""

import random
from binascii import crc_hqx
from typing import Any

from dibs.stores.redis.settings import Endpoint

SLOTS = 16384


def slot_of(name: bytes) -> int:
    """The slot of a Redis key: of what stands between its first braces, if anything does."""
    start = name.find(b"{")
    if start >= 0:
        end = name.find(b"}", start + 1)
        if end > start + 1:
            name = name[start + 1 : end]
    return crc_hqx(name, 0) % SLOTS


class SlotMap:
    """What one node told of all of them, and what redirections have added."""

    def __init__(self) -> None:
        self._owners: dict[int, Endpoint] = {}

    def read(self, answer: Any, teller: Endpoint) -> None:
        """Take in the answer to `CLUSTER SLOTS`; a node without an address is the one that told."""
        owners: dict[int, Endpoint] = {}
        for first, last, primary, *_ in answer:
            host, port = primary[0], int(primary[1])
            endpoint = Endpoint(host.decode() if host and host != b"?" else teller.host, port)
            owners.update(dict.fromkeys(range(first, last + 1), endpoint))
        self._owners = owners

    def moved(self, slot: int, owner: Endpoint) -> None:
        """A node said that another one serves this slot now."""
        self._owners[slot] = owner

    def owner(self, slot: int) -> Endpoint | None:
        """Who serves a slot, as far as is known."""
        return self._owners.get(slot)

    def nodes(self) -> list[Endpoint]:
        """All nodes that serve slots, in random order."""
        nodes = list(dict.fromkeys(self._owners.values()))
        random.shuffle(nodes)
        return nodes

    def __bool__(self) -> bool:
        return bool(self._owners)


def read_redirection(said: str, teller: Endpoint) -> tuple[str, int, Endpoint]:
    """`MOVED 3999 host:port`: what is to be done, for which slot, and where."""
    kind, slot, address = said.split()[:3]
    host, _, port = address.rpartition(":")
    return kind, int(slot), Endpoint(host or teller.host, int(port))
