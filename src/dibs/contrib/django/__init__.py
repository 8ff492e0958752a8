"""Leases in Django: the default store from the settings, and one process that migrates.

Put `"dibs.contrib.django"` into `INSTALLED_APPS`, and name a store:

* `DIBS = "redis://localhost/0"`, or `{"URL": ..., "CONNECT_TIMEOUT": ..., "CALL_TIMEOUT": ...}`;
* `DIBS = {"DATABASE": "default"}`: the server of an entry of `DATABASES`, with its login;
* `DIBS = {"CACHE": "default"}`: the Redis of an entry of `CACHES`.

Then primitives without a client use it, in asyncio and threads, and `manage.py locked_migrate` migrates.
"""

from collections.abc import Generator
from contextlib import contextmanager

from dibs.contrib import needs
from dibs.sync import Lease, Lock, Semaphore

try:
    import django as _django  # type: ignore[import-untyped]  # noqa: F401  # raises if it is missing
except ModuleNotFoundError as _error:
    raise needs("Django", "django") from _error

__all__ = ["locked_atomic"]


@contextmanager
def locked_atomic(lock: Lock | Semaphore, using: str | None = None) -> Generator[Lease]:
    """Hold a lock until the transaction of the block has ended, and others can see what it did.

    A lock that is released inside a transaction lets the next holder read what was there before its
    commit, so this must be the outermost transaction (else Django raises `RuntimeError`, also under
    `ATOMIC_REQUESTS`: see `non_atomic_requests`). A lease that was lost rolls it back, and raises
    `LeaseLost`. Only a fencing token protects against a loss between that check and the commit.
    """
    from django.db import transaction  # type: ignore[import-untyped]  # settings come first

    with lock as lease, transaction.atomic(using=using, durable=True):
        yield lease
        lease.ensure()
