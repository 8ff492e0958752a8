"""Slips are type errors: each planted one is found, by mypy and by pyright, and nothing else is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

MISUSE = Path(__file__).with_name("misuse.py")
ROOT = MISUSE.parents[2]
PYRIGHT = Path(sys.executable).with_name("pyright")
IGNORE = re.compile(r"  # type: ignore\[.*\]$")

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.multiprocess]


@pytest.fixture
def bare(tmp_path: Path) -> tuple[Path, set[int]]:
    """The program without the words that keep checkers silent, and the lines that had them."""
    lines = MISUSE.read_text("utf-8").splitlines()
    program = tmp_path / "program.py"
    program.write_text("\n".join(IGNORE.sub("", line) for line in lines) + "\n")
    planted = {number for number, line in enumerate(lines, 1) if IGNORE.search(line)}
    assert len(planted) > 25
    return program, planted


def lines_found(program: Path, *command: str | Path) -> set[int]:
    done = subprocess.run(
        [*command, program], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return {
        int(number)
        for number in re.findall(
            rf"{program.name}:(\d+)(?::\d+)?(?: -|:) error", done.stdout, re.MULTILINE
        )
    }


def test_mypy_finds_them(bare: tuple[Path, set[int]], tmp_path: Path) -> None:
    program, planted = bare
    mypy = (sys.executable, "-m", "mypy", "--cache-dir", tmp_path)
    assert lines_found(program, *mypy) == planted


@pytest.mark.skipif(not PYRIGHT.exists(), reason="pyright is not installed here")
def test_pyright_finds_them(bare: tuple[Path, set[int]]) -> None:
    program, planted = bare
    assert lines_found(program, PYRIGHT) == planted
