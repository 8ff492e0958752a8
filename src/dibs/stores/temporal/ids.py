"""The IDs of our workflows, the names of their messages, and the task queue of permits and brokers.

Workflow code imports this, so it does no I/O.
"""

import os
import re
import shlex
from hashlib import sha256

from dibs.errors import InvalidName

QUEUE = "distributed-lock-tq"
"""The task queue that serves permits and brokers, unless `TEMPORAL_TASK_QUEUE` names another."""

PERMIT = "PermitSlotWorkflow"
BROKER = "DibsBroker"

APPLY = "apply"
"""An update of the broker: a batch of commands; and a signal to it, from workflows."""
WAIT = "wait"
"""An update of the broker: blocks until it has notifications for an inbox."""
NEWS = "dibs"
"""The signal that brings answers and notifications to workflows."""
STATUS = "status"
"""A query of the broker."""
MEMO = "dibs_key"
"""A broker's memo with its key in base64, for lists."""

LONGEST = 255
"""So many characters an ID may have on servers that keep their workflows in an SQL database."""

_BROKERS = "dibs:"
_PLAIN = 200
_HASHED = "~"

_ESCAPED = re.compile(rb"[^A-Za-z0-9_./:@+=,-]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def permit_workflow_id(resource: str, slot: str) -> str:
    """The workflow ID that is the lock on a slot. Raises `InvalidName` for one that is too long.

    A name must leave room for three digits, whatever the slot: else it would do for some slots only.
    """
    found = f"permit:{resource}:{slot}"
    if _CONTROL.search(resource):
        raise InvalidName(
            f"{resource!r} has control characters, which a workflow ID (permit:NAME:SLOT) can't have"
        )
    if not resource or len(f"permit:{resource}:{slot:>3}".encode()) > LONGEST:
        raise InvalidName(
            f"{resource!r} is no name for a resource here: it makes the workflow ID permit:NAME:SLOT, "
            f"which may have {LONGEST} bytes at most"
        )
    return found


def broker_id(key: bytes) -> str:
    """The workflow ID of a key's broker; a long one has a hash, and the broker itself knows the key."""
    found = _ESCAPED.sub(lambda match: b"%%%02X" % match[0][0], key).decode()
    if len(found) > _PLAIN:
        found = f"{_HASHED}{sha256(key).hexdigest()}"
    return _BROKERS + found


# -- the task queue -----------------------------------------------------------------------------------

VARIABLE = "TEMPORAL_TASK_QUEUE"


def task_queue(explicit: str | None = None) -> str:
    """The given queue, else `TEMPORAL_TASK_QUEUE`, else `distributed-lock-tq`.

    Raises `ValueError` for an empty name.
    """
    return named_queue(explicit) or QUEUE


def named_queue(explicit: str | None = None) -> str | None:
    """The given queue, else `TEMPORAL_TASK_QUEUE`, else None. Raises `ValueError` for an empty name."""
    if explicit is None:
        return os.environ.get(VARIABLE, "").strip() or None
    given: object = explicit
    if not isinstance(given, str) or not given.strip():
        raise ValueError(
            f"task_queue is {explicit!r}: name the queue that serves permits, or leave it out"
        )
    return explicit


def unserved_message(queue: str, about: str = "") -> str:
    """Say that no worker serves the queue. `about`: where it is, or what waits there."""
    return f"nobody serves the task queue {queue!r}{about}"


def serve_hint(queue: str) -> str:
    """Say how to serve the queue."""
    option, argument = "", ""
    if queue != QUEUE:
        option, argument = f" --task-queue {shlex.quote(queue)}", f", task_queue={queue!r}"
    return (
        f"run `dibs temporal worker{option}`, or add DibsPlugin(serve=True{argument}) to a worker "
        "of yours"
    )


def terminate_hint(workflow_id: str) -> str:
    """Say how to end a workflow that nobody serves."""
    return f"`temporal workflow terminate --workflow-id {shlex.quote(workflow_id)}`"
