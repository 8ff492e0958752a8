"""A Django project in a folder, whose one migration says when it begins, and waits until it may go on."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.servers.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

SETTINGS = """
INSTALLED_APPS = ["dibs.contrib.django", "shop"]
USE_TZ = True
"""

MIGRATION = """
import os, time
from pathlib import Path
from django.db import migrations, models

def work(apps, editor):
    folder = Path(os.environ["PROJECT"])
    with (folder / "notes").open("a") as notes:
        notes.write(f"{os.getpid()}\\n")
    while not (folder / "go").exists():
        time.sleep(0.01)

class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.RunPython(work),
        migrations.CreateModel("Order", [("id", models.AutoField(primary_key=True))]),
    ]
"""


class Project:
    """Its files, and the processes of `manage.py` that were started."""

    def __init__(self, folder: Path, databases: dict[str, Any], **settings: Any) -> None:
        self.folder = folder
        (folder / "shop" / "migrations").mkdir(parents=True)
        for name in ("shop/__init__.py", "shop/migrations/__init__.py"):
            (folder / name).touch()
        (folder / "shop" / "migrations" / "0001_initial.py").write_text(MIGRATION)
        told = {"DATABASES": databases, **settings}
        lines = [f"{name} = {value!r}\n" for name, value in told.items()]
        (folder / "settings.py").write_text(SETTINGS + "".join(lines))
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, **environment: str) -> "subprocess.Popen[str]":
        """`manage.py`, as a process of its own."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DIBS")}
        path = os.pathsep.join(map(str, (self.folder, ROOT / "src")))
        mine = {"PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "settings"}
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "django", *command],
            env=clean | mine | {"PROJECT": str(self.folder), "DIBS_TTL": "1s"} | environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, *command: str) -> tuple[int, str, str]:
        """Its exit code and what it printed."""
        return end(self.start(*command))

    def begun(self, count: int = 1) -> list[int]:
        """Wait until the migration has begun so often; the processes that ran it."""

        def enough() -> list[int]:
            notes = self.folder / "notes"
            pids = [int(line) for line in notes.read_text().split()] if notes.exists() else []
            return pids if len(pids) >= count else []

        return wait_until(enough, f"the migration has begun {count} times")

    def may_go_on(self) -> None:
        """Let the migration end."""
        (self.folder / "go").touch()

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=60)


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Its exit code and the rest of its output, once it has ended."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def told(process: "subprocess.Popen[str]", words: str) -> str:
    """The next line of its stderr that has these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it ended without {words!r}")
