"""Both sides have the same names, and every one of them says what it does."""

import inspect
from typing import Any

import pytest

import dibs
import dibs.sync

NAMES: list[str] = vars(dibs)["__all__"]
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
@pytest.mark.parametrize("name", NAMES)
def test_everything_public_says_what_it_does(module: Any, name: str) -> None:
    found = getattr(module, name)
    assert inspect.getdoc(found)
    if name in OWN and inspect.isclass(found):
        silent = [
            method
            for method, member in public_methods(found).items()
            if method != "__init__" and not inspect.getdoc(function_of(member))
        ]
        assert silent == []


def test_the_blocking_side_speaks_of_no_task() -> None:
    """What it says of cancellation and `await` would mislead a program with threads."""
    for name in OWN:
        found = getattr(dibs.sync, name)
        texts = [inspect.getdoc(found) or ""]
        if inspect.isclass(found):
            texts += [
                inspect.getdoc(function_of(each)) or "" for each in public_methods(found).values()
            ]
        for text in texts:
            assert "async with" not in text, text
            assert "asyncio" not in text, text
            assert "await " not in text, text
