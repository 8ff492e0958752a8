"""Errors of something that tries for ever: the first is told, then one every so often."""

import logging
from collections.abc import Callable

log = logging.getLogger("dibs")

EVERY = 30.0
"""While it goes on failing it is told again after so many seconds."""


class Complaints:
    """What goes wrong with one thing."""

    def __init__(self, of: str, now: Callable[[], float]) -> None:
        self._of = of
        self._now = now
        self._told_at: float | None = None
        self.latest: Exception | None = None
        """What went wrong last; None once it works again."""

    def tell(self, error: Exception) -> None:
        """It has failed, and will be tried again."""
        self.latest = error
        now = self._now()
        if self._told_at is None or now - self._told_at >= EVERY:
            self._told_at = now  # only where it is told: else nothing but the first would ever be
            log.warning("the campaign for %s goes on in spite of: %s", self._of, error)

    def clear(self) -> None:
        """It works."""
        self.latest = self._told_at = None
