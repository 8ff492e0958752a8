"""Both worlds have the same names, signatures and words."""

import inspect
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import dibs
import dibs.sync

NAMES: list[str] = vars(dibs)["__all__"]

CLASSES = [
    "AllOf",
    "Campaign",
    "Client",
    "LeaderElection",
    "Lease",
    "Leases",
    "Lock",
    "RWLease",
    "RWLock",
    "Semaphore",
    "TaskLease",
    "TaskLock",
    "Term",
]

LATER = {name: getattr(dibs, name) for name in NAMES}
"""What an annotation may name though its module loads it later."""


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


def plain(annotation: Any) -> Any:
    """A type without what tells the worlds apart."""
    if get_origin(annotation) is Coroutine:
        return plain(get_args(annotation)[2])
    if get_origin(annotation) in (AsyncIterator, Iterator):
        return ("many", plain(get_args(annotation)[0]))
    if get_origin(annotation) is dibs.faces.aio.Acquisition:
        return plain(get_args(annotation)[0])
    if isinstance(annotation, list):
        return [plain(each) for each in annotation]
    arguments = get_args(annotation)
    if arguments and get_origin(annotation) is not None:
        return (get_origin(annotation), tuple(plain(argument) for argument in arguments))
    return getattr(annotation, "__name__", annotation)


def shape(member: Any) -> Any:
    """Names, kinds, defaults and types of the parameters, and the type of what is returned."""
    function = function_of(member)
    hints = get_type_hints(function, localns=LATER)
    parameters = [
        (each.name, each.kind, each.default, plain(hints.get(each.name)))
        for each in inspect.signature(function).parameters.values()
    ]
    return type(member).__name__, parameters, plain(hints.get("return"))


def test_both_modules_have_the_same_names() -> None:
    assert set(NAMES) == set(vars(dibs.sync)["__all__"])
    assert list(NAMES) == sorted(NAMES)
    for name in NAMES:
        assert getattr(dibs, name) is not None
        assert getattr(dibs.sync, name) is not None
        if name not in (*CLASSES, "connect"):
            assert getattr(dibs, name) is getattr(dibs.sync, name), name


def test_every_public_class_that_differs_is_compared() -> None:
    differing = {
        name
        for name in NAMES
        if getattr(dibs, name) is not getattr(dibs.sync, name)
        and inspect.isclass(getattr(dibs, name))
    }
    assert differing == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_the_same_methods_with_the_same_signatures(name: str) -> None:
    ours = public_methods(getattr(dibs, name))
    theirs = public_methods(getattr(dibs.sync, name))
    assert set(ours) == set(theirs)
    for method in ours:
        assert shape(ours[method]) == shape(theirs[method]), f"{name}.{method}"


def test_connect_has_the_same_signature() -> None:
    assert shape(dibs.connect) == shape(dibs.sync.connect)


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
@pytest.mark.parametrize("name", CLASSES)
def test_every_public_method_and_class_says_what_it_does(module: Any, name: str) -> None:
    cls = getattr(module, name)
    assert inspect.getdoc(cls)
    silent = [
        method
        for method, member in public_methods(cls).items()
        if method != "__init__" and not inspect.getdoc(function_of(member))
    ]
    assert silent == []
    for function in (module.connect, module.set_default, module.override, module.current_lease):
        assert inspect.getdoc(function)


@pytest.mark.parametrize("name", CLASSES)
def test_methods_that_do_the_same_are_described_alike(name: str) -> None:
    """Word for word, but for where the worlds differ."""
    ours = public_methods(getattr(dibs, name))
    theirs = public_methods(getattr(dibs.sync, name))
    differing = {
        method
        for method in ours
        if inspect.getdoc(function_of(ours[method])) != inspect.getdoc(function_of(theirs[method]))
    }
    assert differing <= {"acquire"}


@pytest.mark.parametrize("name", NAMES)
def test_every_error_tells_its_meaning(name: str) -> None:
    assert inspect.getdoc(getattr(dibs, name))
