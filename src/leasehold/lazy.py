"""Public names that are imported when they are first used: a shell command starts in no time."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def from_modules(
    package: str, names: Mapping[str, tuple[str, ...]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` for a module whose names live in others (PEP 562)."""
    home = {name: module for module, exported in names.items() for name in exported}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names_of() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return sorted(home), get, names_of
