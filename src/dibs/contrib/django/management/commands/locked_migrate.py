"""`manage.py locked_migrate`: of many processes that start at once, one migrates, and the others wait."""

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError  # type: ignore[import-untyped]
from django.core.management.commands import migrate  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]

from dibs.client import default_is_named
from dibs.contrib.django.store import connect_to_database
from dibs.sync import AcquireTimeout, DibsError, Lease, LeaseLost, Lock

_TEMPORARY_FAILURE = 75
"""EX_TEMPFAIL, as in `dibs run`."""


class Command(migrate.Command):  # type: ignore[misc]  # Django says nothing of its types
    """`migrate` under a lock that is named after the database.

    The lock lies in the default store, if `DIBS`, $DIBS_URL, the settings file or the project's
    own code names one, and else in the database itself. A process that waited runs `migrate` too, and
    finds nothing to do. Should the one that migrates be killed, the next takes over when its lease has
    ended (`DIBS_TTL`, 30 s).
    """

    help = "Runs migrate under a lock, so that of many processes one migrates and the others wait."

    def add_arguments(self, parser: Any) -> None:
        """Add the options of `migrate`, and how to wait."""
        super().add_arguments(parser)
        group = parser.add_mutually_exclusive_group()
        group.add_argument(
            "--wait", metavar="DURATION", help="wait at most so long (10m, 90s), then exit with 75"
        )
        group.add_argument(
            "--no-wait",
            action="store_true",
            help="if another process migrates, exit with 0 at once",
        )
        parser.add_argument(
            "--lock-name", help="name of the lock; default: derived from the database"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Wait, migrate, release the lock."""
        wait, no_wait = options.pop("wait", None), options.pop("no_wait", False)
        name = options.pop("lock_name", None)
        if options.get("plan") or options.get("check_unapplied"):
            super().handle(*args, **options)
            return
        lease = self._acquired(name, options["database"], wait, no_wait)
        if lease is None:
            return
        try:
            with lease:
                super().handle(*args, **options)
        except LeaseLost as lost:
            raise CommandError(f"another process may be migrating by now: {lost}") from lost

    def _acquired(
        self, name: str | None, database: str, wait: str | None, no_wait: bool
    ) -> Lease | None:
        """Acquire the lease; None with `--no-wait` if another process has it."""
        try:
            lock = lock_for(database, name, wait)  # raises for wrong options
            try:
                return lock.acquire(wait=0)
            except AcquireTimeout as busy:
                self.stderr.write(f"{busy}; {'skipped' if no_wait else 'waiting'}")
                return None if no_wait else lock.acquire()
        except AcquireTimeout as busy:
            raise CommandError(f"not migrated: {busy}", returncode=_TEMPORARY_FAILURE) from busy
        except (DibsError, ValueError) as error:
            raise CommandError(f"not migrated: {error}") from error


def lock_for(database: str, name: str | None, wait: str | None) -> Lock:
    """The lock, in the default store if one is named, otherwise in the database itself."""
    client = None if default_is_named() else connect_to_database(database)
    name = name_of(database) if name is None else name
    return Lock(name, wait=wait, note="manage.py migrate", client=client)


def name_of(alias: str) -> str:
    """A lock's name for a database: the same in every process that migrates it.

    A server is not part of it, as one is known by many names; databases of one name on two servers
    take turns, which does no harm.
    """
    connection = connections[alias]
    name = str(connection.settings_dict["NAME"] or alias)
    if connection.vendor == "sqlite":
        name = str(Path(name).resolve())
    return f"django-migrate:{connection.vendor}:{name}"
