"""What to say where nobody serves a task queue, and what to do about it."""

import shlex

from dibs.backends.temporal.protocol.ids import QUEUE


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
