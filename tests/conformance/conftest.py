"""Which cases are left out where time is short."""

import os

import pytest

DEAR = "TestTemporal"
"""Its blocking world goes the other's way but for the last step, and each case takes a moment."""

TELLING = frozenset({"Pushes", "Contending", "Clients"})
"""So of that one these parts tell enough, unless `LEASEHOLD_WHOLE_CONFORMANCE` is set."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("LEASEHOLD_WHOLE_CONFORMANCE"):
        return
    dear = [item for item in items if _is_dear(item)]
    config.hook.pytest_deselected(items=dear)
    items[:] = [item for item in items if item not in dear]


def _is_dear(item: pytest.Item) -> bool:
    if not (isinstance(item, pytest.Function) and item.name.endswith("[blocking]")):
        return False
    if item.parent is None or item.parent.name != DEAR or item.cls is None:
        return False
    case = item.originalname
    parts = {part.__name__ for part in item.cls.__mro__ if case in vars(part)}
    return bool(parts) and not parts & TELLING
