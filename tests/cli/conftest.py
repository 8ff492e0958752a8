"""The command line as its users have it: real processes on a store of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """Runs `dibs`; whatever it started and still runs is killed afterwards."""
    line = Cli(tmp_path)
    yield line
    line.kill_all()
