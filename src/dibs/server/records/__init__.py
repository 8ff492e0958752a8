"""What the service itself has to remember: API keys, restrictions, where directories live, the audit."""

from importlib import import_module

from dibs.errors import NotConfigured
from dibs.server.records.port import Records
from dibs.stores.redact import redacted
from dibs.stores.registry import SPELLINGS, needing_extras

PLACES = {
    "memory": "memory:MemoryRecords",
    "sqlite": "sqlite:SqliteRecords",
    "redis": "redis:RedisRecords",
    "rediss": "redis:RedisRecords",
    "valkey": "redis:RedisRecords",
    "valkeys": "redis:RedisRecords",
    "postgresql": "postgres:PostgresRecords",
}
"""Where records can lie, by the scheme of the URL."""


def records_for(url: str) -> Records:
    """The records at a URL, spelt as for a store of leases; nothing is connected to yet.

    Raises `NotConfigured` for a URL at which no records can lie, or that is none.
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
