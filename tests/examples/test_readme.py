"""The example of the README runs as it stands."""

import re
from pathlib import Path

from tests.pages import blocks, run


def test_the_readme_runs(tmp_path: Path) -> None:
    (code,) = blocks("../README.md")
    printed = run(code, tmp_path)
    assert re.fullmatch(r"only one process is here, with token \d+\n", printed)


def test_the_readme_installs_what_its_commands_need() -> None:
    commands = "".join(blocks("../README.md", "console"))
    (extras,) = re.findall(r"^\$ pip install '\.\[(.*)\]'$", commands, re.MULTILINE)
    assert {"cli", "server"} <= set(extras.split(","))
    assert "DIBS_URL" not in re.sub("^#.*", "", commands, flags=re.MULTILINE), "no made-up host"
