"""The lines of Dibs on the pages in `docs/coming-from` run as they stand."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.pages import DOCS, blocks, run

PRINTED = {
    "redis-py": r"mine, with token \d+\n",
    "python-redis-lock": r"mine, with token \d+\n",
    "filelock": r"mine, with token \d+\n",
    "cron-flock": "",
    "shedlock": "only one host does this\n",
    "redisson": r"mine, with token \d+\n",
    "advisory-locks": r"mine, with token \d+\n",
    "celery-once": r"only one worker syncs 7 with token \d+\nat most once in ten minutes: 7\n",
    "grelmicro": r"mine, with token \d+\n",
}
"""The pages, and what their Python prints."""


@pytest.mark.parametrize("page", sorted(path.stem for path in DOCS.glob("coming-from/*.md")))
def test_the_new_lines_work(page: str, tmp_path: Path) -> None:
    printed = "".join(run(code, tmp_path) for code in blocks(f"coming-from/{page}.md"))
    assert re.fullmatch(PRINTED[page], printed)


def test_crontab_line_of_both_locks(tmp_path: Path) -> None:
    text = (DOCS / "coming-from/cron-flock.md").read_text("utf-8")
    (line,) = re.findall(r"`(flock .* dibs run .*)`", text)
    line = line.replace("/run/lock/nightly", "old").replace("/usr/local/bin/nightly", "echo ran")
    settings = {"DIBS_URL": f"sqlite:///{tmp_path}/leases.db"}

    def printed(command: str) -> str:
        shell = ["sh", "-c", command]
        done = subprocess.run(
            shell, cwd=tmp_path, env=os.environ | settings, capture_output=True, text=True, check=False
        )
        assert not done.stderr
        return done.stdout

    assert printed(line) == "ran\n"
    assert printed(f"flock old {line}") == "", "the old lock excludes it"
    assert printed(f"dibs run nightly {line}") == "", "so does the lock of Dibs"
