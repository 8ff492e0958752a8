"""Servers that several files of tests use."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.world import Served, World


@pytest.fixture
def world() -> Iterator[World]:
    """A server over memory."""
    with World.over() as world:
        yield world


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(30) as pool:
        yield pool


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    """Two servers of one service, over SQLite."""
    folder = tmp_path_factory.mktemp("two")
    with ExitStack() as stack:
        yield tuple(stack.enter_context(World.over(folder)) for _ in range(2))  # type: ignore[misc]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts servers in processes, which end with the test."""
    with ExitStack() as stack:

        def start(*options: str, **environ: str) -> Served:
            served = Served(tmp_path, *options, **environ)
            stack.enter_context(served.process)
            stack.callback(served.process.kill)
            return served

        yield start
