"""The Python on the pages in `docs/coming-from` and `docs/concepts` runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.core.timing import margin, renew_after, trusted
from tests.pages import DOCS, blocks, run

MINE = r"mine, with token \d+\n"
PRINTED = {
    "coming-from/redis-py.md": MINE,
    "coming-from/python-redis-lock.md": MINE,
    "coming-from/filelock.md": MINE,
    "coming-from/shedlock.md": "only one host does this\n",
    "coming-from/redisson.md": MINE,
    "coming-from/advisory-locks.md": MINE,
    "coming-from/celery-once.md": r"only one .* 7 with token \d+\nat most once in ten minutes: 7\n",
    "coming-from/grelmicro.md": MINE,
    "concepts/lease.md": r"lock:order:42 is held by .*\n.* with \d+ s left\npacked .*\npacked .*\n",
    "concepts/fencing.md": "rows written: 1\nrows written too late: 0\n",
}
"""The pages with Python, and what it prints."""


@pytest.mark.parametrize("page", PRINTED)
def test_the_programs_of_a_page(page: str, tmp_path: Path) -> None:
    printed = "".join(run(code, tmp_path) for code in blocks(page))
    assert re.fullmatch(PRINTED[page], printed)


def test_no_page_is_left_out() -> None:
    pages = (path.relative_to(DOCS) for path in DOCS.glob("co[mn]*/*.md"))
    assert {str(page) for page in pages if blocks(str(page))} == PRINTED.keys()


@pytest.mark.parametrize(("column", "ttl"), [(3, 5.0), (4, 30.0), (5, 300.0)])
def test_the_times_of_a_lease_are_those_of_the_code(column: int, ttl: float) -> None:
    lines = (DOCS / "concepts/time.md").read_text("utf-8").splitlines()
    rows = (line.split("|") for line in lines if line.startswith("| ") and line.count("|") == 6)
    shown = {row[1].strip(): row[column].split() for row in rows if row[1].strip()}
    times = [renew_after(ttl), margin(ttl), trusted(ttl), ttl]
    assert [float(value) for value, _ in shown.values()] == pytest.approx(times, rel=0.03)


def test_crontab_line_of_both_locks(tmp_path: Path) -> None:
    text = (DOCS / "coming-from/cron-flock.md").read_text("utf-8")
    (line,) = re.findall(r"`(flock .*/dibs run .*)`", text)
    line = line.replace("/run/lock/nightly", "old").replace("/usr/local/bin/nightly", "echo ran")
    dibs = Path(sys.executable).with_name("dibs")
    line = line.replace("/opt/dibs/bin/dibs", str(dibs))
    settings = {"DIBS_URL": f"sqlite:///{tmp_path}/leases.db"}

    def printed(command: str) -> str:
        shell = ["sh", "-c", command]
        done = subprocess.run(
            shell,
            cwd=tmp_path,
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.stderr
        return done.stdout

    assert printed(line) == "ran\n"
    assert printed(f"flock old {line}") == "", "the old lock excludes it"
    assert printed(f"{dibs} run nightly {line}") == "", "so does the lock of Dibs"
