"""The files of a how-to page, written to a folder and run there, as a reader does."""

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Self

from tests.cli.processes import end
from tests.pages import write_files


class Programs:
    """The files of a page, and the processes that were started there; `with` ends them."""

    def __init__(self, page: str, folder: Path) -> None:
        write_files(page, folder)
        self.folder = folder
        self.url = f"sqlite:///{folder}/leases.db"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        unwanted = ("DIBS_", "PYTHONUNBUFFERED")  # unbuffered, a line is two writes, which can mix
        clean = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
        self.environment = clean | {"PATH": path, "DIBS_URL": self.url}
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            end(process)

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a file, mostly to something that takes less time."""
        path = self.folder / name
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new), "utf-8")

    def start(self, command: str) -> "subprocess.Popen[str]":
        """Start a shell's line."""
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, command: str) -> str:
        """What it prints; it must succeed, and neither warn nor log."""
        return printed(self.start(command))


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
