"""What holds where nothing is said: the task queue, and how long things take."""

from contextlib import nullcontext
from datetime import timedelta

from temporalio import workflow

from dibs.stores.temporal.protocol import queues

DEFAULT_LEASE = timedelta(minutes=10)
"""How long a permit stands without a renewal."""
SHORTEST_RENEWED = 3.0
"""Temporal's timers come up to a second late, and a renewal has to come well before the lease ends."""
DEFAULT_BACKOFF = timedelta(seconds=5)
"""The pause after the first round of probes that found every slot taken; each next one is twice as long."""
MAX_BACKOFF = timedelta(minutes=1)
MAX_HOLD = 86_400.0
"""A permit is renewed for so long, or for `RENEWALS` of them if that is less."""
RENEWALS = 1000
"""Each one is a signal, and costs the holder twelve events of its history."""
GRACE = 10.0
"""Seconds after its last moment in which the server ends a permit that no worker has ended."""
CONFIRMED = 10.0
"""So long a release waits for the permit's end."""
ARMED = 30.0
"""So long a new permit may take to report; then nobody serves its queue."""
ARMED_AT_LEAST = 5.0
"""So long it may, however little is left of `wait`."""


def named_queue(explicit: str | None = None) -> str | None:
    """The task queue as told, else `TEMPORAL_TASK_QUEUE`; None if neither names one.

    In a workflow that is its worker's environment. A replay elsewhere is none the worse for another
    queue, as the queue of a child's start is not compared. Raises `ValueError` for what is no name.
    """
    with workflow.unsafe.sandbox_unrestricted() if workflow.in_workflow() else nullcontext():
        return queues.named_queue(explicit)
