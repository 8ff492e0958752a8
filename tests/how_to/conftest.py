"""What each how-to page has: its programs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.sync import Client, connect
from tests.how_to.programs import Programs


@pytest.fixture
def programs(page: str, tmp_path: Path) -> Iterator[Programs]:
    """The programs of a page, which a test names by `@programs_of`."""
    with Programs(page, tmp_path) as programs:
        yield programs


@pytest.fixture
def client(programs: Programs) -> Iterator[Client]:
    """A client of the file that the programs use."""
    with connect(programs.url) as client:
        yield client
