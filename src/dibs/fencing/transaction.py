"""Whether a database's connection is in a transaction, as its driver tells it."""

from typing import Any

IDLE = 0
"""libpq's word for a connection that is in no transaction."""


def is_in_transaction(connection: Any) -> bool | None:
    """Whether what is written next stands with what follows; None where the connection doesn't tell.

    To be asked before writing: a connection that begins a transaction by itself is in one.
    """
    atomic = getattr(connection, "in_atomic_block", None)  # Django's
    if isinstance(atomic, bool):
        return atomic or not connection.get_autocommit()
    autocommit = getattr(connection, "autocommit", None)
    if autocommit is False:  # as the DB-API has it: the first statement begins one
        return True
    inside = getattr(connection, "in_transaction", None)
    if isinstance(inside, bool):
        return inside or _begins_by_itself(connection)
    status = getattr(getattr(connection, "info", None), "transaction_status", None)  # psycopg's
    return None if status is None else int(status) != IDLE


def _begins_by_itself(connection: Any) -> bool:
    """What sqlite3 does before it writes, unless it is told not to in one of two ways."""
    level = getattr(connection, "isolation_level", None)
    return level is not None and getattr(connection, "autocommit", None) is not True
