"""Every built-in store passes the whole suite, and none escapes it."""

from pathlib import Path

import pytest

from dibs.stores.port import Store
from dibs.stores.registry import BUILTIN
from dibs.testing import ManualClock
from tests.conformance.harnesses import HARNESSES, WholeSuite
from tests.stores.memory_cells import MemoryCellStore, Server

ALIKE = frozenset(HARNESSES.keys() - {"memory", "sqlite", "redis", "postgresql"})
"""These are like others, or like the cells below, or are slow: one version of Python is enough."""

for _scheme, _harness in HARNESSES.items():
    if _scheme in ALIKE:
        _harness = pytest.mark.once(_harness)
    globals()[f"Test{_scheme.capitalize()}"] = _harness


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


def test_no_backend_escapes_the_suite() -> None:
    assert BUILTIN.keys() <= HARNESSES.keys()
