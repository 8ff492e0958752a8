"""The adapter for compare-and-set stores passes the suite with dates and without, on cells in memory."""

from pathlib import Path

import pytest

from dibs.stores.port import Store
from dibs.testing import ManualClock
from tests.conformance.primitives import WholeSuite
from tests.stores.memory_cells import MemoryCellStore, Server


class TestDatedCells(WholeSuite):
    resolution = 1.0

    @pytest.fixture(autouse=True)
    def _servers(self) -> None:
        self.servers: dict[Path, Server] = {}

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        server = self.servers.setdefault(tmp_path, Server(clock, self.resolution))
        return MemoryCellStore(clock, server)


@pytest.mark.once
class TestUndatedCells(TestDatedCells):
    resolution = 0.0
