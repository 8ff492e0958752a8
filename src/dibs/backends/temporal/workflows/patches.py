"""What a run that began with an earlier release must not do, as its history says otherwise.

Each is to be asked only where it makes a difference: the first time costs an event.
"""

from temporalio import workflow


def is_careful() -> bool:
    """Whether this run grants nothing on a doubtful permit, nor sends more than a message may hold."""
    return workflow.patched("dibs-careful")


def in_portions() -> bool:
    """Whether this run divides what comes or goes in a burst."""
    return workflow.patched("dibs-portions")


def extends_late() -> bool:
    """Whether this run extends a permit whose report came late, rather than to give it back."""
    return workflow.patched("dibs-late")
