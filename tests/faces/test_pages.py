"""The examples of the pages about task locks and leaders, as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("lock.md", "4 more, under token"),
        ("tasklock.md", "we report, with token"),
        ("leader-election.md", "term 2 led by"),
        ("allof.md", "both are given up"),
        ("from-redis-py.md", "mine, with token"),
    ],
)
def test_a_pages_example_works(page: str, told: str, tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        env={"LEASEHOLD_URL": f"sqlite:///{tmp_path}/leases.db"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
    assert not done.stderr
