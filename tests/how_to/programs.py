"""The files of a how-to page, written to a folder and run there, as a reader does."""

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.cli.processes import Cli, end
from tests.pages import write_files


def programs_of(name: str) -> pytest.MarkDecorator:
    """The fixture `programs` has those of this how-to page."""
    return pytest.mark.parametrize("page", [f"how-to/{name}.md"])


class Programs(Cli):
    """The files of a page, and the processes that were started there; `with` ends them."""

    def __init__(self, page: str, folder: Path) -> None:
        super().__init__(folder)
        write_files(page, folder)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment["PATH"] = path

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a file, mostly to something that takes less time."""
        path = self.folder / name
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new), "utf-8")

    def shell(self, line: str) -> "subprocess.Popen[str]":
        """Start a shell's line."""
        return self.start(line, program=["bash", "-c"], cwd=self.folder, stdin=PIPE)

    def run(self, line: str) -> str:
        """What it prints; it must succeed, and neither warn nor log."""
        return printed(self.shell(line))


def printed(process: "subprocess.Popen[str]") -> str:
    """What a program prints to its end; it must succeed, and neither warn nor log."""
    code, out, err = end(process)
    assert (code, err) == (0, ""), out + err
    return out


def line_with(words: str, process: "subprocess.Popen[str]", stream: str = "stdout") -> str:
    """Wait for the next line with these words."""
    for line in getattr(process, stream):
        if words in line:
            return str(line)
    raise AssertionError(f"it ended without {words!r}")
