"""Runs a program of its own, for what must not happen to the process that tests."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent


def run_script(source: str, *arguments: str | Path, timeout: float = 60) -> list[str]:
    """The lines that a program prints; it must end well and print nothing on stderr."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", dedent(source)]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()
