"""The lease in log records: its key and fencing token, for `logging` and for structlog."""

import logging
from collections.abc import MutableMapping
from typing import Any

from dibs import NotHeld, current_lease
from dibs.core.names import shown


class LeaseFilter(logging.Filter):
    """Adds `lease` and `token` to each record: those of `current_lease()`, or "-" and 0.

    Add it to a handler. Filters of a logger do not see the records of its children.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; the record is always logged."""
        record.lease, record.token = _fields() or ("-", 0)
        return True


def add_lease(
    logger: object, method_name: str, event_dict: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A processor of structlog: adds `lease` and `token` to each event while a lease is current."""
    if fields := _fields():
        event_dict.setdefault("lease", fields[0])
        event_dict.setdefault("token", fields[1])
    return event_dict


def _fields() -> tuple[str, int] | None:
    """The key and token of the current lease, such as `lock:order:42`; None without one."""
    try:
        lease = current_lease()
    except NotHeld:
        return None
    return shown(lease.key), lease.token
