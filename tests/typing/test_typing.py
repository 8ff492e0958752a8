"""The public surface is typed as a strict program needs it: mypy and pyright check one that uses it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

API = Path(__file__).with_name("api.py")
ROOT = API.parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.multiprocess]


def checked(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_mypy_is_content_and_finds_every_planted_error(tmp_path: Path) -> None:
    """`warn_unused_ignores` is part of strict, so an error that isn't found is one itself."""
    out = checked(sys.executable, "-m", "mypy", "--cache-dir", tmp_path, API)
    assert "Success: no issues found" in out


def test_pyright_is_content() -> None:
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists():
        pytest.skip("pyright is not installed here")
    assert "0 errors" in checked(pyright, API)


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "dibs" / "py.typed").exists()
