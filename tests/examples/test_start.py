"""The first page, command by command, on a file and on Redis."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import blocks, write_files

COMMANDS = [
    (command, told)
    for block in blocks("start.md", "console")
    for command, told in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


def pattern_of(told: str) -> str:
    """A pattern for the output that a page shows: `…` is for what differs from run to run."""
    return ".*".join(map(re.escape, told.split("…")))


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/leases.db"
    url: str = request.getfixturevalue("redis_url")
    return url


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.multiprocess
def test_the_commands_print_what_the_page_shows(url: str, tmp_path: Path) -> None:
    write_files("start.md", tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command, told in COMMANDS:
        until_held = "until dibs show report >&2; do sleep 0.1; done"
        done = subprocess.run(
            ["bash", "-c", command.replace("sleep 2", until_held)],
            cwd=tmp_path,
            env={"DIBS_URL": url, "PATH": path},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert re.fullmatch(pattern_of(told), done.stdout), f"{command}\n{done.stdout}{done.stderr}"
