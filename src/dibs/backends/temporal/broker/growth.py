"""When a run of ours should leave its history behind."""

from temporalio import workflow


def outgrown(events: int, calls: int, most_calls: int) -> bool:
    """Its history is longer than `events`, or the server will soon take no more calls, or says so."""
    info = workflow.info()
    return (
        info.is_continue_as_new_suggested()
        or info.get_current_history_length() > events
        or calls > most_calls
    )
