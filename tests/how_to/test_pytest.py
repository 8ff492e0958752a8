"""How to test a program that uses locks: the tests of the page pass, and the one that leaks fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import write_files


@pytest.mark.multiprocess
def test_the_tests_of_the_page(tmp_path: Path) -> None:
    write_files("how-to/pytest.md", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:xdist"]
    env = {"DIBS_URL": "sqlite:////nowhere/leases.db", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*command, "-o", "asyncio_default_fixture_loop_scope=function", "--rootdir", tmp_path],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 failed, 6 passed" in done.stdout, done.stdout + done.stderr
    assert "FAILED test_leak.py" in done.stdout
    assert "the test ended while leases were held" in done.stdout
    assert "lock 'report', held by " in done.stdout
