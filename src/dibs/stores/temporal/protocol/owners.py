"""Which workflow's run an inbox stands for, if it stands for one. Pure."""

import re


def is_unicode(text: str) -> bool:
    """JSON may carry half of a pair of surrogates, which no message of Temporal's may."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_WORKFLOW = "wf:"
_RUN_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONGEST = 1_000
"""No workflow ID is longer."""

type Owner = tuple[str, str]
"""A workflow ID and a run ID."""


def inbox_of(workflow_id: str, run_id: str) -> str:
    """Where the pushes of a workflow's run go."""
    return f"{_WORKFLOW}{workflow_id}:{run_id}"


def owner_of(inbox: str) -> Owner | None:
    """The workflow that an inbox stands for, if it stands for one.

    To signal what can't be a workflow's run would fail the broker's task, again and again.
    """
    workflow_id, _, run_id = inbox.removeprefix(_WORKFLOW).rpartition(":")
    if not inbox.startswith(_WORKFLOW) or not workflow_id or not _RUN_ID.fullmatch(run_id):
        return None
    return (workflow_id, run_id) if len(inbox) < _LONGEST and is_unicode(inbox) else None
