"""A transaction within a lock."""

from collections.abc import Generator
from contextlib import contextmanager

from dibs.sync import Lease, Lock, Semaphore


@contextmanager
def locked_atomic(lock: Lock | Semaphore, using: str | None = None) -> Generator[Lease]:
    """Hold a lock until the transaction of the block has ended, and others can see what it did.

    A lock that is released inside a transaction lets the next holder read what was there before its
    commit, so this must be the outermost transaction (else Django raises `RuntimeError`, also under
    `ATOMIC_REQUESTS`: see `non_atomic_requests`). A lease that was lost rolls it back, and raises
    `LeaseLost`; what happens between that look and the commit is for a fencing token to tell.
    """
    from django.db import transaction  # type: ignore[import-untyped]  # settings come first

    with lock as lease, transaction.atomic(using=using, durable=True):
        yield lease
        lease.ensure()
