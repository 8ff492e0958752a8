"""The examples of the page about fencing, as they stand there, but for the server's address."""

import re
from pathlib import Path

import pytest

from tests.pages import blocks, run

SERVER = "redis://localhost:6379/0"


def example(about: str) -> str:
    [found] = [block for block in blocks("fencing.md") if about in block]
    return found


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
    assert len(blocks("fencing.md")) == 3
