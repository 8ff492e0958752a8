"""What is public: by name, alike on both sides, documented, and loaded only when it is used."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dibs
import dibs.sync
import dibs.testing
from dibs import lazy
from tests.pages import blocks, run


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

LEASE = words(
    """
    adopt detach ensure key lost owner reason release remaining renew slot slots token trouble ttl
    wait_lost
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


@pytest.mark.parametrize(
    ("module", "own"), [(dibs, lazy.OWN), (dibs.sync, "")], ids=["async", "sync"]
)
def test_type_checkers_see_the_same_names(module: Any, own: str) -> None:
    """They read the imports that never run; a program gets what `dibs.lazy` says."""
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    static = {
        each.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
        if each.asname == each.name
    }
    homes = {**lazy.SHARED, "dibs._api": own}
    assert static == {name: home for home, names in homes.items() for name in names.split()}


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import dibs", {"asyncio", "inspect", "sqlite3", "dibs.errors"}),
        ("import dibs.sync", {"asyncio", "sqlite3", "dibs._api"}),
        ("from dibs import LeaseLost", {"asyncio", "dibs.session"}),
        ("from dibs.sync import Lock; Lock('a')", {"asyncio", "dibs.decorator", "tomllib"}),
        ("from dibs.sync import Lock\n@Lock.wraps('a')\ndef f(): ...", {"asyncio", "dibs._api"}),
        ("import dibs.testing", {"asyncio", "inspect", "dibs.testing.checker"}),
        ("import dibs.tasks", {"cronsim"}),
    ],
)
def test_nothing_is_loaded_before_it_is_used(code: str, unwanted: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "dibs.lazy" in done.stdout.split()
    assert set(done.stdout.split()) & unwanted == set()


OWN = {name for name in NAMES if getattr(dibs, name) is not getattr(dibs.sync, name)}
"""What `dibs.sync` has its own of: `tools/unasync.py` makes it of the other."""


def public_methods(cls: type) -> dict[str, Any]:
    """What a person may call, with the constructor."""
    found = {}
    for name in dir(cls):
        if name.startswith("_") and name != "__init__":
            continue
        member = inspect.getattr_static(cls, name)
        if isinstance(member, staticmethod | classmethod | property) or callable(member):
            found[name] = member
    return found


def function_of(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    return getattr(member, "__func__", member)


def parameters(member: Any) -> list[tuple[str, Any, object]]:
    signature = inspect.signature(function_of(member))
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


@pytest.mark.parametrize("name", sorted(OWN))
def test_the_sides_differ_in_classes_with_the_same_methods(name: str) -> None:
    ours, theirs = getattr(dibs, name), getattr(dibs.sync, name)
    if not inspect.isclass(ours):
        assert parameters(ours) == parameters(theirs)
        return
    methods, others = public_methods(ours), public_methods(theirs)
    assert set(methods) == set(others)
    for method, member in methods.items():
        assert parameters(member) == parameters(others[method]), f"{name}.{method}"


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
def test_a_lease_shows_only_what_holders_use(module: Any) -> None:
    assert [name for name in dir(module.Lease) if not name.startswith("_")] == LEASE


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
def test_everything_public_is_documented_for_its_side(module: Any) -> None:
    """What the blocking side says of `await` would mislead a program with threads."""
    for name in NAMES:
        found = getattr(module, name)
        texts = {name: inspect.getdoc(found) or ""}
        if name in OWN and inspect.isclass(found):
            for method, member in public_methods(found).items():
                if method != "__init__":
                    texts[f"{name}.{method}"] = inspect.getdoc(function_of(member)) or ""
        assert [each for each, text in texts.items() if not text] == []
        if module is dibs.sync and name in OWN:
            wrong = [
                text for text in texts.values() if re.search("async with|asyncio|await ", text)
            ]
            assert wrong == []


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("lock.md", "4 more, under token"),
        ("tasklock.md", "we report, with token"),
        ("leader-election.md", "term 2 led by"),
        ("allof.md", "both are given up"),
        ("from-redis-py.md", "mine, with token"),
    ],
)
def test_a_pages_example_works(page: str, told: str, tmp_path: Path) -> None:
    [example] = blocks(page)
    assert told in run(example, tmp_path)
