"""Whatever takes `client=` takes the name of a store: nothing public is left out."""

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from dibs import LeaderConfig, LockConfig, TaskLockConfig

MODULES = (
    "dibs",
    "dibs.sync",
    "dibs.tasks",
    "dibs.testing",
    "dibs.contrib.celery",
    "dibs.contrib.django",
    "dibs.contrib.fastapi",
)

TAKE_A_CLIENT_ITSELF = {"connect", "override"}
"""One is given somebody else's client, the other is told what to put in a store's stead."""

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Held": ("a",),
    "LeaderElection": ("a",),
    "LeaderElection.from_config": ("a", LeaderConfig()),
    "Lock": ("a",),
    "Lock.from_config": ("a", LockConfig()),
    "Lock.wraps": ("a",),
    "RWLock": ("a",),
    "RWLock.from_config": ("a", LockConfig()),
    "Semaphore": ("a", 2),
    "Semaphore.from_config": ("a", 2, LockConfig()),
    "TaskLock": ("a", 0, 60),
    "TaskLock.from_config": ("a", TaskLockConfig(min_hold=0, max_hold=60)),
    "TaskLock.wraps": ("a",),
    "Tasks": (),
    "locked": ("a",),
}
"""How each is made."""

OPTIONS = {"TaskLock.wraps": {"min_hold": 0, "max_hold": 60}}


def names_in(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    return listed or [
        name
        for name, each in vars(module).items()
        if not name.startswith("_") and getattr(each, "__module__", None) == module.__name__
    ]


def callables(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a person may call, by its name."""
    for name in names_in(module):
        found = getattr(module, name)
        if callable(found):
            yield name, found
        if inspect.isclass(found):
            methods = (each for each in dir(found) if not each.startswith("_"))
            yield from ((f"{name}.{each}", getattr(found, each)) for each in methods)


def takes_a_client(function: Any) -> bool:
    """By its own name, or among its options."""
    if not callable(function):
        return False
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # of the interpreter's own
        return False
    options = [
        str(each.annotation) for each in parameters.values() if each.kind is each.VAR_KEYWORD
    ]
    return "client" in parameters or any(each.endswith("options.Options]") for each in options)


FOUND = [
    pytest.param(name, called, id=f"{module}-{name}")
    for module in MODULES
    for name, called in callables(importlib.import_module(module))
    if takes_a_client(called) and name not in TAKE_A_CLIENT_ITSELF
]


def test_each_is_found_and_tried() -> None:
    assert {found.values[0] for found in FOUND} == ARGUMENTS.keys()


def decorated(made: Any) -> Any:
    """A decorator says what is wrong at the latest when it is used."""

    def function() -> None: ...

    return made(function) if inspect.isfunction(made) else made


@pytest.mark.parametrize(("name", "called"), FOUND)
def test_it_takes_the_name_of_a_store(name: str, called: Any) -> None:
    def made(client: str) -> Any:
        return decorated(called(*ARGUMENTS[name], client=client, **OPTIONS.get(name, {})))

    made("reports")
    with pytest.raises(ValueError, match="a store's name is 'Reports'"):
        made("Reports")
