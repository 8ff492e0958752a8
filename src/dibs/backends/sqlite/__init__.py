"""sqlite:/// keeps leases in a file on this machine, shared by all processes that open it."""

from dibs.backends.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
