"""sqlite:/// keeps leases in a file on this machine, shared by all processes that open it."""

from dibs.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
