"""A broker's time: the server's, or in tests one that is moved by hand."""

import time

from temporalio import workflow


class BrokerClock:
    """Seconds for the ledger, and the stamp in microseconds for its tokens; `by_hand` stands for both."""

    def __init__(self, now: float, by_hand: tuple[float, int] | None) -> None:
        self.by_hand = by_hand
        self._now = now

    def now(self) -> float:
        """It never goes back: a server that takes over may be a little behind the last one."""
        if self.by_hand:
            return self.by_hand[0]
        self._now = max(self._now, workflow.time())
        return self._now

    def read(self) -> tuple[float, int]:
        """Now and the stamp."""
        now = self.now()
        return (now, self.by_hand[1]) if self.by_hand else (now, int(now * 1e6))

    def of_query(self) -> tuple[float, int]:
        """Likewise. Of the server's time a query sees that of the last task, so this is the worker's."""
        if self.by_hand:
            return self.by_hand[0], self.by_hand[1]
        with workflow.unsafe.sandbox_unrestricted():
            now = max(self._now, time.time())
        return now, int(now * 1e6)
