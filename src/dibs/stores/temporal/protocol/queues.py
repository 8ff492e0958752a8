"""Which task queue it is, where several places may say so, and what to say where nobody serves it."""

import os
import shlex

from dibs.stores.temporal.protocol.ids import QUEUE

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


def unserved(queue: str, about: str = "") -> str:
    """That nobody does; `about`: where that queue is, or what waits there."""
    return f"nobody serves the task queue {queue!r}{about}"


def serve(queue: str) -> str:
    """How to have it served."""
    option, argument = "", ""
    if queue != QUEUE:
        option, argument = f" --task-queue {shlex.quote(queue)}", f", task_queue={queue!r}"
    return (
        f"run `dibs temporal worker{option}`, or add DibsPlugin(serve=True{argument}) to a worker "
        "of yours"
    )


def terminate(workflow_id: str) -> str:
    """How to end what is stuck there."""
    return f"`temporal workflow terminate --workflow-id {shlex.quote(workflow_id)}`"
