"""Public names that are imported when they are first used: a shell command starts in no time."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

type Exports = tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]
"""`__all__`, `__getattr__` and `__dir__` of a module."""


def from_modules(package: str, names: Mapping[str, tuple[str, ...]]) -> Exports:
    """`__all__`, `__getattr__` and `__dir__` for a module whose names live in others (PEP 562)."""
    home = {name: module for module, exported in names.items() for name in exported}

    def get(name: str) -> Any:
        if name == "__version__":
            return imported("importlib.metadata").version("dibs")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(imported(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(home), get, lambda: sorted(home)


def pass_through(name: str) -> None:
    """Let the sandbox of a Temporal workflow have the module from outside; outside of one do nothing."""
    workflow = sys.modules.get("temporalio.workflow")
    if workflow is not None and workflow.unsafe.in_sandbox():
        imported(name)


def imported(name: str) -> Any:
    """The module of that name; in the sandbox of a Temporal workflow the one outside of it.

    The sandbox would take it in anew for each run of a workflow: in vain, as what a workflow may use
    keeps nothing in its modules, and what it may not use is refused all the same.
    """
    workflow = sys.modules.get("temporalio.workflow")
    if workflow is None or not workflow.unsafe.in_sandbox():
        return import_module(name)
    with workflow.unsafe.imports_passed_through():
        __import__(name)  # which is the sandbox's own; import_module is not
    return sys.modules[name]
