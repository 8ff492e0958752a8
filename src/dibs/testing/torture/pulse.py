"""Asks the store something small now and then, to know when it or this machine stood still.

What happens then says nothing about who was served late.
"""

import threading
from types import TracebackType
from typing import Self

from dibs import sync
from dibs.clock import BootClock

PERIOD = 0.5
SLOW = 1.0
"""Seconds that neither an answer nor a nap may be late."""


class Pulse:
    """A thread with a client of its own."""

    def __init__(self, url: str, name: str) -> None:
        self._lapses: list[float] = []
        self._lock = threading.Lock()
        self._url, self._name = url, name
        self._now = BootClock().now
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(2 * SLOW)  # one that hangs is left behind: it is a daemon

    def take(self) -> list[float]:
        """When a lapse began or went on since the last time, by the clock of histories."""
        with self._lock:
            taken, self._lapses = self._lapses, []
        return taken

    def _note(self, *times: float) -> None:
        with self._lock:
            self._lapses += times

    def _beat(self) -> None:
        client = sync.connect(self._url, connect_timeout=2 * SLOW, call_timeout=2 * SLOW)
        with client:
            last = self._now()
            while not self._over.wait(PERIOD):
                began = self._now()
                if began - last > PERIOD + SLOW:
                    self._note(last, began)
                if not self._is_well(client) or self._now() - began > SLOW:
                    self._note(began, self._now())
                last = self._now()

    def _is_well(self, client: sync.Client) -> bool:
        try:
            client.status(self._name)
        except Exception:  # noqa: BLE001 - a third party's store may raise anything
            return False
        return True
