"""Servers that several files of tests use."""

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dibs.server.records import records_for
from dibs.server.records.port import Records
from dibs.testing import ManualClock
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


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[Records]:
    records = records_for(f"sqlite:///{tmp_path / 'records.db'}")
    await records.open()
    yield records
    await records.close()
