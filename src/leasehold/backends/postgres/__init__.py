"""postgresql:// keeps leases in a PostgreSQL database, shared by all machines that reach it."""

from leasehold.errors import NotConfigured

try:
    import psycopg as _psycopg
except ImportError as error:
    raise NotConfigured(
        f"postgresql:// needs an extra: pip install 'leasehold[postgres]' ({error})"
    ) from error

from leasehold.backends.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
del _psycopg
