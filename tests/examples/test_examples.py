"""Every example runs by itself, without a server, and prints what its docstring says.

The last lines of an example's docstring begin with `Prints: `. What follows must stand in what it prints,
one after the other; `…` is for whatever differs from run to run.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TOLD = "Prints: "


def examples() -> list[str]:
    return sorted(path.name for path in EXAMPLES.glob("*.py"))


def promised(source: str) -> list[str]:
    """What an example says that it prints."""
    lines = (ast.get_docstring(ast.parse(source)) or "").splitlines()
    return [line.removeprefix(TOLD) for line in lines if line.startswith(TOLD)]


def pattern_of(told: list[str]) -> re.Pattern[str]:
    pieces = (".*".join(map(re.escape, line.split("…"))) for line in told)
    return re.compile(r"(?:.*\n)*?.*".join(pieces))


@pytest.mark.parametrize("name", examples())
def test_an_example_prints_what_it_says(name: str, tmp_path: Path) -> None:
    told = promised((EXAMPLES / name).read_text("utf-8"))
    assert told, f"let the docstring of {name} end with a line `{TOLD}…`"
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        cwd=tmp_path,
        env={"DIBS_URL": f"sqlite:///{tmp_path}/leases.db", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert pattern_of(told).search(done.stdout), done.stdout
    assert "Traceback" not in done.stderr  # a lost lease may well be logged


def test_an_example_that_prints_something_else_is_caught() -> None:
    pattern = pattern_of(["held by … for 3 s", "free"])
    assert pattern.search("so\nheld by me for 3 s\nthen\nnow free\n")
    assert not pattern.search("free\nheld by me for 3 s\n")
    assert not pattern.search("held by me\nfor 3 s\nfree\n")
