"""How each built-in store is made for the conformance suite; one row for each scheme."""

from pathlib import Path

from leasehold.backends import store_for
from leasehold.backends.port import Store
from leasehold.testing import ManualClock
from leasehold.testing.conformance import BackendConformance


class Memory(BackendConformance):
    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for("memory://", clock=clock)


class Sqlite(BackendConformance):
    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(f"sqlite:///{tmp_path}/leases.db", clock=clock)


HARNESSES: dict[str, type[BackendConformance]] = {"memory": Memory, "sqlite": Sqlite}
