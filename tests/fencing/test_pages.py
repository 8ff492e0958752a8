"""The examples of the page about fencing, as they stand there, but for the server's address."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "fencing.md"
SERVER = "redis://localhost:6379/0"


def example(about: str) -> str:
    [found] = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
        if about in block
    ]
    text: str = found
    return text


def run(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"LEASEHOLD_URL": f"sqlite:///{folder}/leases.db"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.multiprocess
@pytest.mark.parametrize("about", ["SqlFence", "FileFence"])
def test_an_example_of_the_page_works(about: str, tmp_path: Path) -> None:
    assert re.match(r"token \d+ of lock \S+ is stale: token", run(example(about), tmp_path))


@pytest.mark.multiprocess
def test_the_example_for_redis_works(redis_url: str, tmp_path: Path) -> None:
    code = example("RedisFence")
    assert SERVER in code
    told = run(code.replace(SERVER, redis_url), tmp_path)
    assert re.match(r"token \d+ of lock cart:42 is stale: token", told)


def test_every_example_of_the_page_is_run() -> None:
    assert PAGE.read_text("utf-8").count("```python") == 3
