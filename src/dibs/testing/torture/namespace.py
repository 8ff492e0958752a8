"""Names that nothing else uses, in a store that others may be using."""

import secrets
import time
from collections.abc import Callable
from statistics import median

from dibs.core.timing import margin
from dibs.errors import NotConfigured, UnsafeTiming
from dibs.sync import Client

PROBES = 10
LINGER = 35.0
"""Seconds in which a store drops the places of those who died in a queue."""
GLANCE = 0.5


class Namespace:
    """A random prefix. Nobody's else names can begin with it."""

    def __init__(self, client: Client) -> None:
        self.prefix = f"dibs-verify-{secrets.token_hex(8)}/"
        self._client = client

    def probe(self, ttl: float) -> None:
        """See that the store can be used by several processes, in time.

        Raises `NotConfigured` or `UnsafeTiming` where a trial would be for nothing.
        """
        if self._client.capabilities.scope == "process":
            raise NotConfigured(
                f"{self._client.url} lives in the memory of one process, so no other process can "
                "contend for its leases and there is nothing to verify: name a store that "
                "processes share, such as sqlite:///path.db"
            )
        lock = self._client.lock(f"{self.prefix}probe", ttl=max(ttl, 5.0), wait=0, env_load=False)
        took = median(_timed(lambda: lock.acquire().release()) for _ in range(PROBES)) / 2
        if took > margin(ttl):
            raise UnsafeTiming(
                f"a round trip to {self._client.url} takes {took:.3f} s, which is more than the "
                f"margin of a ttl of {ttl:g} s: try again with a ttl of {30 * took:.0f} s"
            )

    def clean(self, wait: Callable[[float], bool]) -> int:
        """Free what the dead still hold; returns how many of their places in queues are left.

        Those only the store can drop, after half a minute. `wait` waits, and says whether to go on.
        Raises `DibsError` where the store can't be asked.
        """
        until = time.monotonic() + LINGER
        while True:
            found = list(self._client.list(self.prefix))
            for status in found:
                if status.holders:
                    self._client.revoke(status, reason="dibs verify is over", now=True)
            left = sum(max(status.waiting, len(status.waiters)) for status in found)
            if not found:
                return 0
            if time.monotonic() >= until or not wait(GLANCE):
                return left


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
