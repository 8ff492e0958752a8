"""The example of the page about tasks, as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


@pytest.mark.multiprocess
def test_the_page_s_example_works(tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        env={"LEASEHOLD_URL": f"sqlite:///{tmp_path}/leases.db"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "polled, with token" in done.stdout
    assert re.search(r"^poll every 1 s won [1-9]", done.stdout, re.MULTILINE), done.stdout
    assert "billing/__main__:report cron 0 3 * * * (Europe/Berlin) won" in done.stdout
    assert not done.stderr
