"""Servers that several files of tests use."""

from collections.abc import Iterator

import pytest

from tests.server.world import World


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    """Two over one store."""
    folder = tmp_path_factory.mktemp("two")
    first = World.over(folder)
    second = World.over(folder)
    yield first, second
    first.close()
    second.close()
