"""postgresql:// keeps leases in a PostgreSQL database, shared by all machines that reach it."""

from dibs.errors import NotConfigured

try:
    import psycopg as _psycopg
except ImportError as error:
    raise NotConfigured(
        f"postgresql:// needs an extra: pip install 'dibs[postgres]' ({error})"
    ) from error

from dibs.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
del _psycopg
