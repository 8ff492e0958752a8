"""Which task queue it is, where several places may say so."""

import os

from dibs.backends.temporal.protocol.ids import QUEUE

VARIABLE = "TEMPORAL_TASK_QUEUE"


def task_queue(explicit: str | None = None) -> str:
    """The queue of permits and brokers: as told, else `TEMPORAL_TASK_QUEUE`, else `distributed-lock-tq`.

    Raises `ValueError` for what is no name.
    """
    if explicit is None:
        return os.environ.get(VARIABLE, "").strip() or QUEUE
    given: object = explicit
    if not isinstance(given, str) or not given.strip():
        raise ValueError(
            f"task_queue is {explicit!r}: name the queue that serves permits, or leave it out"
        )
    return explicit
