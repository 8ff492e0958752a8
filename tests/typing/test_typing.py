"""What a strict program needs is typed, and slips are type errors: mypy and pyright check two programs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

API, MISUSE = (Path(__file__).with_name(name) for name in ("api.py", "misuse.py"))
ROOT = API.parents[2]
PYRIGHT = Path(sys.executable).with_name("pyright")
IGNORE = re.compile(r"  # type: ignore\[.*\]$")
ERROR = re.compile(r"(\w+\.py):(\d+)(?::\d+)?(?: -|:) error")

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.multiprocess]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_checker_finds_each_slip_and_nothing_else(tmp_path: Path, checker: str) -> None:
    """`warn_unused_ignores` is part of strict, so an error of the API that isn't found is one itself."""
    if checker == "pyright" and not PYRIGHT.exists():
        pytest.skip("pyright is not installed here")
    lines = MISUSE.read_text("utf-8").splitlines()
    program = tmp_path / "program.py"
    program.write_text("\n".join(IGNORE.sub("", line) for line in lines) + "\n")
    planted = {number for number, line in enumerate(lines, 1) if IGNORE.search(line)}
    assert len(planted) > 25
    mypy = [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache"]
    done = subprocess.run(
        [*([PYRIGHT] if checker == "pyright" else mypy), API, program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    found = {(name, int(number)) for name, number in ERROR.findall(done.stdout)}
    assert found == {(program.name, number) for number in planted}, done.stdout + done.stderr
