"""The examples of the README and of docs/python.md run as they stand."""

import re
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


def test_the_readme_runs(tmp_path: Path) -> None:
    (code,) = blocks("../README.md")
    printed = run(code, tmp_path)
    assert re.fullmatch(r"only one process is here, with token \d+\n", printed)


def test_the_readme_installs_what_its_commands_need() -> None:
    commands = "".join(blocks("../README.md", "console"))
    (extras,) = re.findall(r"^\$ pip install '\.\[(.*)\]'$", commands, re.MULTILINE)
    assert {"cli", "server"} <= set(extras.split(","))
    assert "DIBS_URL" not in re.sub("^#.*", "", commands, flags=re.MULTILINE), "no made-up host"
