"""The example of the page about tasks, as it stands there."""

import re
from pathlib import Path

import pytest

from tests.pages import blocks, run


@pytest.mark.multiprocess
def test_the_page_s_example_works(tmp_path: Path) -> None:
    told = run(blocks("tasks.md")[0], tmp_path)
    assert "polled, with token" in told
    assert re.search(r"^poll every 1 s won [1-9]", told, re.MULTILINE), told
    assert "billing/__main__:report cron 0 3 * * * (Europe/Berlin) won" in told
