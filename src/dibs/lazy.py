"""The public names, imported on first use: so a shell command starts fast, and threads need no asyncio."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

type Exports = tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]
"""`__all__`, `__getattr__` and `__dir__` of a module."""

SHARED = {
    "dibs.client": "override set_default",
    "dibs.config": "Duration LockConfig",
    "dibs.decorator": "NameTemplate as_current",
    "dibs.errors": (
        "AcquireTimeout BackendUnavailable CapacityWarning Corrupt Deadlock DibsError Forbidden "
        "ImplicitStoreWarning IncompatibleVersion InvalidName InvalidRequest LeaseLost MissingCapability "
        "NotConfigured NotHeld Reentrant UnsafeTiming"
    ),
    "dibs.locks.tasklock": "TaskLockConfig",
    "dibs.locks.election": "LeaderConfig",
    "dibs.locks.waiting": "Waiting",
    "dibs.model": "Capabilities Finding Holder Status Waiter",
}
"""Public names that `dibs` and `dibs.sync` share, by module; in `__init__.py` for type checkers."""

OWN = (
    "AllOf Campaign Client LeaderElection Lease Leases Lock RWLease RWLock Semaphore TaskLease TaskLock Term "
    "connect current_lease"
)
"""Public names that each side has its own of, in `_api.py` and `sync.py`."""


def public_names(module: str, own: str) -> Exports:
    """`__all__`, `__getattr__` and `__dir__` of a side whose own names are in the module `own`."""
    names = {each: tuple(shared.split()) for each, shared in SHARED.items()}
    return from_modules(module, {**names, own: tuple(OWN.split())})


def from_modules(package: str, names: Mapping[str, tuple[str, ...]]) -> Exports:
    """`__all__`, `__getattr__` and `__dir__` for a module whose names are in others (PEP 562)."""
    home = {name: module for module, exported in names.items() for name in exported}

    def get(name: str) -> Any:
        if name == "__version__":
            return imported("dibs.version").VERSION
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(imported(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(home), get, lambda: sorted(home)


def pass_through(name: str) -> None:
    """In the sandbox of a Temporal workflow, use the module from outside; elsewhere do nothing."""
    workflow = sys.modules.get("temporalio.workflow")
    if workflow is not None and workflow.unsafe.in_sandbox():
        imported(name)


def imported(name: str) -> Any:
    """Import a module; in the sandbox of a Temporal workflow return the one from outside.

    The sandbox would import it again for each run of a workflow. That is not needed: what a workflow can
    use keeps no state in its modules, and the rest is rejected anyway.
    """
    workflow = sys.modules.get("temporalio.workflow")
    if workflow is None or not workflow.unsafe.in_sandbox():
        return import_module(name)
    with workflow.unsafe.imports_passed_through():
        __import__(name)  # the sandbox replaces this one, but not import_module
    return sys.modules[name]
