"""A Django project whose replicas may all begin with `manage.py locked_migrate`: one of them migrates.

Run as it stands, it migrates a database of its own, and changes it in a transaction within a lock.

Prints: Applying contenttypes.0001_initial... OK
Prints: No migrations to apply.
Prints: committed while order:42 was held: True
"""

import tempfile
from pathlib import Path

import django  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from django.core.management import call_command  # type: ignore[import-untyped]

from dibs.contrib.django import locked_atomic
from dibs.sync import Lock


def configure(folder: Path) -> None:
    """What a project's settings.py would say."""
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "site.sqlite3")}
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "dibs.contrib.django"],
        DATABASES={"default": database},
        DIBS={"DATABASE": "default"},  # or {"URL": "redis://…"}, or {"CACHE": "default"}
        USE_TZ=True,
    )
    django.setup()


def main() -> None:
    from django.contrib.contenttypes.models import ContentType  # type: ignore[import-untyped]
    from django.db import transaction  # type: ignore[import-untyped]

    for _ in range(2):
        call_command("locked_migrate", no_color=True)
    lock = Lock("order:42")
    with locked_atomic(lock) as lease:
        ContentType.objects.create(app_label="shop", model=f"token{lease.token}")
        transaction.on_commit(
            lambda: print("committed while order:42 was held:", not lease.lost and lock.locked())
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        configure(Path(folder))
        main()
