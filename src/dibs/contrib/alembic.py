"""Alembic migrations at the start of a program, in one process at a time."""

from dibs.contrib import needs
from dibs.sync import Lock

try:
    from alembic import command
    from alembic.config import Config
except ModuleNotFoundError as _error:
    raise needs("Alembic", "alembic") from _error


def locked_upgrade(config: Config, revision: str = "head", *, lock: Lock) -> None:
    """Upgrade the database to a revision while holding `lock`.

    Of many processes that start at once, one migrates; the others wait as long as the lock's `wait`, and
    then find nothing to do. Raises `AcquireTimeout` after that, and `LeaseLost` at the end if the lease was
    lost: what the migration has committed by then stays. The lease is renewed meanwhile, and expires within
    its ttl if the process is killed.
    """
    with lock:
        command.upgrade(config, revision)
