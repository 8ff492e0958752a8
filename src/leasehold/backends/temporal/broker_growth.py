"""What a run of ours may do at once, and when it should leave its history behind."""

from temporalio import workflow


def outgrown(events: int, calls: int, most_calls: int) -> bool:
    """Its history is longer than `events`, or the server will soon take no more calls, or says so."""
    info = workflow.info()
    return (
        info.is_continue_as_new_suggested()
        or info.get_current_history_length() > events
        or calls > most_calls
    )


def is_careful() -> bool:
    """Whether this run grants nothing on a doubtful permit, nor sends more than a message may hold; to be
    asked only where that makes a difference.
    """
    return workflow.patched("leasehold-careful")


def in_portions() -> bool:
    """Whether this run divides what comes or goes in a burst; to be asked only where there is one.

    A run that began with a release that did not would else not do what its history says.
    """
    return workflow.patched("leasehold-portions")
