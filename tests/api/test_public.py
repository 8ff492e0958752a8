"""What is public: by name, alike on both sides, and loaded only when it is used."""

from types import ModuleType

import pytest

import dibs
import dibs.sync
import dibs.testing
from tests.runtime.scripts import run_script


def words(text: str) -> list[str]:
    return text.split()


NAMES = words(
    """
    AcquireTimeout AllOf BackendUnavailable Campaign Capabilities CapacityWarning Client Corrupt
    Deadlock DibsError Duration Finding Forbidden Holder ImplicitStoreWarning IncompatibleVersion
    InvalidName InvalidRequest LeaderConfig LeaderElection Lease LeaseLost Leases Lock LockConfig
    MissingCapability NameTemplate NotConfigured NotHeld RWLease RWLock Reentrant Semaphore Status
    TaskLease TaskLock TaskLockConfig Term UnsafeTiming Waiter Waiting as_current connect
    current_lease override set_default
    """
)

TESTING = words(
    """
    FaultProxy Faults FaultyStore HistoryEvent ManualClock Recorder Torture TorturePlan
    TortureProgress Verdict Violation check check_liveness expire merge read steal
    """
)


@pytest.mark.parametrize(
    ("module", "names"),
    [(dibs, NAMES), (dibs.sync, NAMES), (dibs.testing, TESTING)],
    ids=["async", "sync", "testing"],
)
def test_the_public_names_are_these(module: ModuleType, names: list[str]) -> None:
    assert module.__all__ == names
    assert dir(module) == names, "and nothing that is ours alone"
    for name in names:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Mutex'"):
        getattr(module, "Mutex")  # noqa: B009


LOADED = """
import sys

def step(code, *unwanted):
    exec(code)
    for name in unwanted:
        if name in sys.modules:
            print(name, "is loaded by", code)

step("import dibs", "asyncio", "inspect", "sqlite3", "dibs.errors")
step("import dibs.testing", "asyncio", "inspect", "dibs.testing.checker")
step("from dibs import LeaseLost", "asyncio", "dibs.session")
step("import dibs.sync", "asyncio", "sqlite3", "dibs._api")
step("from dibs.sync import Lock; Lock('a')", "asyncio", "dibs.decorator", "tomllib")
step("from dibs.sync import Lock; Lock.wraps('a')(print)", "asyncio", "sqlite3", "dibs._api")
step("import dibs.tasks", "cronsim")
"""


def test_nothing_is_loaded_before_it_is_used() -> None:
    assert run_script(LOADED) == []


@pytest.mark.parametrize("module", ["dibs", "dibs.sync", "dibs.testing.plugin"])
def test_on_windows_every_import_says_where_dibs_runs(module: str) -> None:
    code = f"import os\nos.name = 'nt'\ntry: import {module}\nexcept ImportError as error: print(error)"
    assert run_script(code)[0].startswith("Dibs runs on Linux and macOS, not on Windows: use WSL")
