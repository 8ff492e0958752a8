"""The project of docs/how-to/django.md."""

import sys
from pathlib import Path

import pytest

from dibs.sync import connect
from tests.how_to.programs import LONG, Programs
from tests.pages import blocks

PAGE = "how-to/django.md"
MANAGE = (sys.executable, "manage.py")


@pytest.mark.once
@pytest.mark.multiprocess
def test_one_process_migrates_and_one_bills(tmp_path: Path) -> None:
    with Programs(PAGE, tmp_path) as project:
        del project.environment["DIBS_URL"]
        project.run(*MANAGE, "makemigrations", "shop")
        ends = [project.start(*MANAGE, "locked_migrate") for _ in range(3)]
        outs = [process.communicate(timeout=LONG)[0] for process in ends]
        assert [process.returncode for process in ends] == [0, 0, 0]
        assert sum("Applying shop.0001_initial... OK" in out for out in outs) == 1
        assert sum("No migrations to apply." in out for out in outs) == 2
        with connect(f"sqlite:///{tmp_path}/shop.db.leases") as client, client.lock("bill"):
            assert project.run(*MANAGE, "bill").startswith("skipped: bill is held by ")
        assert project.run(*MANAGE, "bill").startswith("billed with token ")
        (transaction,) = (code for code in blocks(PAGE) if "locked_atomic" in code)
        project.run(*MANAGE, "shell", "-v0", "-c", transaction)
