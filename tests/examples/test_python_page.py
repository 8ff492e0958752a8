"""The asyncio examples of docs/python.md run as they stand."""

from pathlib import Path

import pytest

from tests.pages import blocks, run


@pytest.mark.parametrize(
    ("about", "printed"),
    [
        ("payment", "mine, with token "),
        ("on_wait=show", "mine\n"),
        ("client.list", "lock:order:42 "),
    ],
)
def test_an_example_of_the_python_page_runs(about: str, printed: str, tmp_path: Path) -> None:
    (code,) = (block for block in blocks("python.md") if about in block)
    assert run(code, tmp_path).startswith(printed)
