"""A lease on its way from one attempt to the next, in the heartbeat details, which only attempts see."""

from collections.abc import Sequence
from typing import Any

MARK = "dibs-handover"


def packed(handle: str, attempt: int) -> dict[str, Any]:
    """For that attempt alone: whoever has the handle can renew and release the lease."""
    return {MARK: handle, "attempt": attempt}


def without(details: Sequence[Any]) -> list[Any]:
    """The details that are the activity's own."""
    return [each for each in details if not _is_ours(each)]


def handed(details: Sequence[Any], attempt: int) -> str | None:
    """What was handed to that attempt."""
    for each in details:
        if _is_ours(each) and each.get("attempt") == attempt:
            handle = each[MARK]
            return handle if isinstance(handle, str) else None
    return None


def _is_ours(detail: Any) -> bool:
    return isinstance(detail, dict) and MARK in detail
