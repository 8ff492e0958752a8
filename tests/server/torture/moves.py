"""Moves of everything to and fro between two stores, while clients use a service over both."""

import itertools
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import httpx2

from dibs.testing.recorder import Recorder
from tests.server.torture.servers import PLACES, Site

EVERY = 5.0
"""Seconds between two orders, at least: each waits until the move before it is finished."""

DEADLINE = 2.0
"""Seconds for which everything drains before holders are revoked."""

LOOK_EVERY = 0.2


class Moves:
    """A thread that orders moves. `finished` counts them."""

    def __init__(self, site: Site) -> None:
        self.finished = 0
        self._site = site
        self._over = threading.Event()

    @contextmanager
    def going_on(self, recorder: Recorder) -> Generator[None]:
        """Move until the block ends. All of it counts as a disturbance: acquires are kept waiting."""
        self._over.clear()
        thread = threading.Thread(target=self._run, args=(recorder,))
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _run(self, recorder: Recorder) -> None:
        for to in itertools.cycle(reversed(PLACES)):
            begun, is_ordered = time.monotonic(), False
            while not self._over.wait(LOOK_EVERY):
                recorder.disturbed(0)
                if not is_ordered:
                    is_ordered = bool(self._ask("PUT", {"to": to, "deadline": DEADLINE}))
                    continue
                seen = self._ask("GET")
                if seen and (seen["place"], seen["to"]) == (to, ""):
                    self.finished += 1
                    break
                # an order that a paused server took may come after those that followed it
                is_ordered = not seen or seen["to"] == to
            if self._over.wait(max(0.0, begun + EVERY - time.monotonic())):
                return

    def _ask(self, method: str, body: dict[str, object] | None = None) -> dict[str, object]:
        """An answer of any server that is there; empty if none is, as each is struck now and then."""
        for server in self._site.servers:
            headers = {"authorization": f"Bearer {server.key}"}
            url = f"http://127.0.0.1:{server.port}/v1/move"
            try:
                answer = httpx2.request(method, url, json=body, headers=headers, timeout=2.0)
            except httpx2.HTTPError:
                continue
            if answer.status_code == 200:
                found: dict[str, object] = answer.json()
                return found
        return {}
