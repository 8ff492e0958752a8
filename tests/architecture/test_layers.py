"""The layering of the package: see `layers.RULES` for the table."""

import ast
import subprocess
import sys
from collections import Counter

import pytest

from tests.architecture.layers import (
    IMPURE,
    RULES,
    Module,
    cycles,
    imports_of,
    problems_of,
    read_modules,
    row_of,
)

pytestmark = pytest.mark.once  # what is written says the same to each version of Python

MODULES = read_modules()


def planted(name: str, text: str, *, is_package: bool = False) -> tuple[Module, dict[str, Module]]:
    """A module that isn't there, beside those that are."""
    full = f"dibs.{name}".removesuffix(".")
    module = Module(full, ast.parse(text), is_package)
    return module, {**MODULES, full: module}


def test_imports_follow_the_table() -> None:
    assert [line for module in MODULES.values() for line in problems_of(module, MODULES)] == []


def test_there_is_something_to_check() -> None:
    assert {"dibs.model", "dibs.core.ledger"} <= set(MODULES)


def test_each_row_is_of_a_module() -> None:
    assert {row_of(module.short) for module in MODULES.values()} == set(RULES)


def test_no_module_imports_in_a_circle() -> None:
    assert cycles(MODULES) == []


DEFINED_AGAIN = ("sync", "temporal.semaphore")
"""Modules that define public names of `_api` again: for threads, and for workflows."""

TWICE = {"Batch", "Caller", "Connection", "Listings", "Settings", "Target"}
"""Names of classes that two packages still define."""


def test_a_name_of_a_class_is_defined_once() -> None:
    found = Counter(
        node.name
        for module in MODULES.values()
        if module.short not in DEFINED_AGAIN
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in found.items() if count > 1} <= TWICE


@pytest.mark.parametrize("name", ["dibs", "dibs.sync", "dibs.errors"])
def test_import_loads_no_third_party_module(name: str) -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        f"import {name}\n"
        "tops = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "print(sorted(tops - set(sys.stdlib_module_names) - {'dibs'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_primitives_have_no_async_generators() -> None:
    """The blocking runtime steps a coroutine once; it could not step a generator."""
    found = [
        f"{name}: {function.name}"
        for name, module in MODULES.items()
        if row_of(module.short) == "locks.*"
        for function in ast.walk(module.tree)
        if isinstance(function, ast.AsyncFunctionDef)
        and any(isinstance(node, ast.Yield) for node in ast.walk(function))
    ]
    assert found == []


# -- the checker itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stores.redis", "from dibs.stores import memory"),
        ("stores.redis", "from . import memory"),
        ("stores.redis", "from .memory import MemoryBackend"),
        ("stores.redis.lua", "from ..memory import MemoryBackend"),
        ("stores.redis", "def f():\n    import dibs.stores.sqlite"),
        ("server.placement.router", "from dibs.server import app"),
        ("server.app", "import prometheus_client"),
        ("stores.redis", "if TYPE_CHECKING:\n    from dibs import client"),
        ("locks.lock", "import asyncio.locks"),
        ("locks.lock", "from dibs.runtime import batcher"),
        ("locks.lock", "from dibs.stores.memory import MemoryBackend"),
        ("cli.run", "from dibs.client import connect"),
        ("cli.run", "from dibs import core"),
        ("cli.run", "def f():\n    import some_third_party.thing"),
        ("core.ledger", "async def f(): ..."),
        ("core.ledger", "from time import monotonic"),
        ("model", "from dibs.errors import DibsError"),
        ("somewhere", "import sys"),
    ],
)  # fmt: skip
def test_catches(name: str, text: str) -> None:
    module, known = planted(name, text)
    known.setdefault("dibs.client", Module("dibs.client", ast.parse("")))
    known.setdefault("dibs.runtime.batcher", Module("dibs.runtime.batcher", ast.parse("")))
    assert problems_of(module, known)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stores.redis", "import redis.asyncio\nfrom dibs.stores.port import Store"),
        ("stores.redis.lua", "from dibs.stores.redis import scripts"),
        ("stores.redis.lua", "from . import scripts\nfrom .scripts import ACQUIRE"),
        ("locks.lock", "from dibs.runtime.port import Runtime\nfrom .lease import Lease"),
        ("cli.run", "from dibs import sync\nfrom dibs.cli import output\nimport click"),
        ("core.ledger", "from math import inf\nfrom .book import Book"),
    ],
)  # fmt: skip
def test_permits(name: str, text: str) -> None:
    module, known = planted(name, text)
    assert problems_of(module, known) == []


def test_cycles_are_found_whatever_kind_of_import_makes_them() -> None:
    def world(first: str, second: str) -> dict[str, Module]:
        return {
            "dibs.a": Module("dibs.a", ast.parse(first)),
            "dibs.b": Module("dibs.b", ast.parse(second)),
        }

    back = "from dibs.a import x"
    for text in (
        "from dibs.b import y",
        "from dibs import b",
        "try:\n    import dibs.b\nfinally: ...",
        "def f():\n    import dibs.b",
        "if TYPE_CHECKING:\n    import dibs.b",
    ):
        assert cycles(world(text, back)) == [["dibs.a", "dibs.b"]]
        assert cycles(world(text, "from dibs.c import x")) == []


def test_reader_sees_relative_imports_as_absolute() -> None:
    def read(name: str, text: str, *, is_package: bool = False) -> list[str]:
        module, _ = planted(name, text, is_package=is_package)
        known = dict.fromkeys(("dibs.core.book", "dibs.model"), module)
        return [item.module for item in imports_of(module, known)]

    assert read("core.ledger", "from .book import Book") == ["dibs.core.book"]
    assert read("core.ledger", "from ..model import Granted") == ["dibs.model"]
    assert read("core.ledger", "from . import book") == ["dibs.core.book"]
    assert read("core", "from . import book", is_package=True) == ["dibs.core.book"]
    assert read("", "from . import model", is_package=True) == ["dibs.model"]


def test_core_is_barred_from_all_that_acts() -> None:
    assert {"time", "random", "os", "asyncio", "threading", "socket"} <= IMPURE
