"""Data of the service itself: API keys, sessions, restrictions, placements, and the audit log."""

from importlib import import_module

from dibs.errors import NotConfigured
from dibs.server.records.port import Records
from dibs.stores.redact import redacted
from dibs.stores.registry import SPELLINGS, needing_extras

PLACES = {
    "memory": "memory:memory_records",
    "sqlite": "sqlite:sqlite_records",
    "redis": "redis:RedisRecords",
    "rediss": "redis:RedisRecords",
    "valkey": "redis:RedisRecords",
    "valkeys": "redis:RedisRecords",
    "postgresql": "postgres:postgres_records",
}
"""Module and callable that makes records, by the scheme of the URL."""


def records_for(url: str) -> Records:
    """The records at a URL, which is written as for a store of leases. Connects to nothing yet.

    Raises `NotConfigured` for an invalid URL, or for one of a store without records.
    """
    scheme, colon, rest = url.partition(":")
    scheme = scheme.lower()
    scheme = SPELLINGS.get(scheme, scheme)
    place = PLACES.get(scheme)
    if not colon or place is None:
        raise NotConfigured(
            f"a service cannot keep its records (API keys, restrictions, audit log) in {redacted(url)!r}: "
            'set records = "sqlite:///records.db", or DIBS_SERVER_RECORDS; the leases stay in the store. '
            f"Records can be in {', '.join(f'{name}://' for name in PLACES if name != 'memory')}"
        )
    module, _, name = place.partition(":")
    with needing_extras(scheme):
        found = import_module(f"{__name__}.{module}")
    records: Records = getattr(found, name)(f"{scheme}:{rest}")
    return records
