"""What is public, by name; and that it is loaded only when it is used."""

import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

import dibs
import dibs.sync
import dibs.testing

NAMES = [
    "AcquireTimeout",
    "AllOf",
    "BackendUnavailable",
    "Campaign",
    "Capabilities",
    "CapacityWarning",
    "Client",
    "Corrupt",
    "Deadlock",
    "DibsError",
    "Duration",
    "Finding",
    "Forbidden",
    "Holder",
    "ImplicitStoreWarning",
    "IncompatibleVersion",
    "InvalidName",
    "InvalidRequest",
    "LeaderConfig",
    "LeaderElection",
    "Lease",
    "LeaseLost",
    "Leases",
    "Lock",
    "LockConfig",
    "MissingCapability",
    "NameTemplate",
    "NotConfigured",
    "NotHeld",
    "RWLease",
    "RWLock",
    "Reentrant",
    "Semaphore",
    "Status",
    "TaskLease",
    "TaskLock",
    "TaskLockConfig",
    "Term",
    "UnsafeTiming",
    "Waiter",
    "Waiting",
    "as_current",
    "connect",
    "current_lease",
    "override",
    "set_default",
]

TESTING = [
    "Event",
    "FaultProxy",
    "Faults",
    "FaultyStore",
    "ManualClock",
    "Recorder",
    "Torture",
    "TorturePlan",
    "TortureProgress",
    "Verdict",
    "Violation",
    "check",
    "check_liveness",
    "expire",
    "merge",
    "read",
    "steal",
]


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


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import dibs", {"asyncio", "inspect", "sqlite3", "dibs.errors"}),
        ("import dibs.sync", {"asyncio", "sqlite3", "dibs._api"}),
        ("from dibs import LeaseLost", {"asyncio", "dibs.hub"}),
        ("from dibs.sync import Lock; Lock('a')", {"asyncio", "dibs.faces.wraps"}),
        (
            "from dibs.sync import Lock\n@Lock.wraps('a')\ndef f(): ...",
            {"asyncio", "dibs._api"},
        ),
        ("import dibs.testing", {"asyncio", "inspect", "dibs.testing.checker"}),
    ],
)
def test_nothing_is_loaded_before_it_is_used(code: str, unwanted: set[str]) -> None:
    code = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONPATH": dibs.__path__[0].removesuffix("/dibs")},
    )
    assert "dibs.lazy" in done.stdout.split()
    assert set(done.stdout.split()) & unwanted == set()


@pytest.mark.parametrize("world", ["dibs", "dibs.sync"])
def test_a_lease_shows_its_holder_nothing_that_is_not_for_holders(world: str) -> None:
    lease = import_module(world).Lease
    assert {name for name in dir(lease) if not name.startswith("_")} == {
        "adopt",
        "detach",
        "ensure",
        "key",
        "lost",
        "owner",
        "reason",
        "release",
        "remaining",
        "renew",
        "slot",
        "slots",
        "token",
        "trouble",
        "ttl",
        "wait_lost",
    }
