"""Every built-in store passes the whole suite, and none escapes it."""

import inspect
from collections.abc import Iterable
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


def escaped(schemes: Iterable[str]) -> set[str]:
    """The schemes that no class collected here tests."""
    tested = {
        scheme
        for scheme, harness in HARNESSES.items()
        if globals().get(f"Test{scheme.capitalize()}") is harness
        and issubclass(harness, WholeSuite)
        and harness.modes == WholeSuite.modes
    }
    return set(schemes) - tested


def test_no_backend_escapes_the_suite() -> None:
    assert escaped(BUILTIN) == set()


def test_an_escaping_backend_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILTIN, "planted", "nowhere:Store")
    assert escaped(BUILTIN) == {"planted"}


def test_every_part_of_the_suite_is_in_it() -> None:
    """A case that a harness hides, or a part that nobody inherits, would never run."""
    cases = [name for name, _ in inspect.getmembers(WholeSuite) if name.startswith("test_")]
    assert len(cases) > 90
    for harness in HARNESSES.values():
        hidden = [name for name in cases if getattr(harness, name) is not getattr(WholeSuite, name)]
        assert hidden == []
