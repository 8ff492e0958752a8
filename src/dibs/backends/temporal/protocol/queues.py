"""Which task queue it is, where several places may say so."""

import os

from dibs.backends.temporal.protocol.ids import QUEUE

VARIABLE = "TEMPORAL_TASK_QUEUE"


def task_queue(explicit: str | None = None) -> str:
    """The queue of brokers: as told, else `TEMPORAL_TASK_QUEUE`, else `distributed-lock-tq`.

    Raises `ValueError` for what is no name.
    """
    return named_queue(explicit) or QUEUE


def named_queue(explicit: str | None = None) -> str | None:
    """As told, else `TEMPORAL_TASK_QUEUE`; None if neither names one. Raises `ValueError` likewise."""
    if explicit is None:
        return os.environ.get(VARIABLE, "").strip() or None
    given: object = explicit
    if not isinstance(given, str) or not given.strip():
        raise ValueError(
            f"task_queue is {explicit!r}: name the queue that serves permits, or leave it out"
        )
    return explicit
