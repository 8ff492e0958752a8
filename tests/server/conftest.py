"""Servers that several files of tests use."""

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dibs.server.records import records_for
from dibs.server.records.port import Records
from dibs.testing import ManualClock
from tests.cli.processes import Cli
from tests.server.world import World


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
def cli(tmp_path: Path) -> Iterator[Cli]:
    """Runs `dibs` in processes, which end with the test."""
    runs = Cli(tmp_path)
    yield runs
    runs.kill_all()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[Records]:
    records = records_for(f"sqlite:///{tmp_path / 'records.db'}")
    await records.open()
    yield records
    await records.close()
