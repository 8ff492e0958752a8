"""Servers of one service."""

from collections.abc import Iterator

import pytest

from tests.server.placement.asking import Fleet


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.close()
