"""The examples of the pages about task locks and leaders, as they stand there."""

from pathlib import Path

import pytest

from tests.pages import blocks, run


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
    [example] = blocks(page)
    assert told in run(example, tmp_path)
