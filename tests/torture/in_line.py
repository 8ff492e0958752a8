"""Whoever writes down when it is in line: what the order of arrival is judged by."""

import os
from typing import Any

from dibs.testing.history import HistoryEvent
from dibs.testing.torture.contender import Contender

IN_LINE = "in line"
"""Of a call that began at `invoked`: the store has said how many are ahead, so it knows of its place."""


def in_line(at: float, key: bytes, invoked: float, process: int) -> HistoryEvent:
    return HistoryEvent(
        at, "asked", key.decode(), invoked=invoked, process=process, resource=IN_LINE
    )


class LineContender(Contender):
    invoked = 0.0
    """When its last call began."""

    def asking(self, *keys: bytes) -> float:
        self.invoked = super().asking(*keys)
        return self.invoked

    def note_in_line(self, key: bytes, waiting: Any) -> None:
        """The store has told how its wait goes."""
        if waiting.position is not None:
            self._recorder.record(in_line(self.now(), key, self.invoked, os.getpid()))
