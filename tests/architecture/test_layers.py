"""Modules import only what `layers.toml` allows."""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
TABLE = tomllib.loads(Path(__file__).with_name("layers.toml").read_text("utf-8"))
GROUPS: Mapping[str, str] = TABLE["groups"]
ROWS: Mapping[str, str] = TABLE["rows"]


class Module(NamedTuple):
    """A source file, read but not run."""

    name: str
    tree: ast.Module
    is_package: bool = False

    @property
    def short(self) -> str:
        """The name as the table has it."""
        return self.name.removeprefix("dibs").removeprefix(".")


def read_modules() -> dict[str, Module]:
    modules = {}
    for path in sorted((SOURCE / "dibs").rglob("*.py")):
        parts = list(path.relative_to(SOURCE).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module(name, ast.parse(path.read_text("utf-8"), str(path)), is_package)
    return modules


MODULES = read_modules()


def imports_of(module: Module, known: Mapping[str, Module]) -> Iterator[tuple[str, int]]:
    """Every import with its line, also in functions and for type checkers.

    `from p import m` can name the module `p.m`.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.name.split(".")
                parts = parts[: len(parts) - node.level + module.is_package]
                base = ".".join([*parts, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield (inner if inner in known else base, node.lineno)


def row_of(short: str) -> str | None:
    """The most specific row for a module."""
    if short in ROWS:
        return short
    parts = short.split(".")
    packages = (".".join(parts[:length]) + ".*" for length in range(len(parts), 0, -1))
    return next((row for row in packages if row in ROWS), None)


def words_of(text: str) -> Iterator[str]:
    """The words of a row, with groups replaced by what is in them."""
    for word in text.split():
        sign, name = (word[0], word[1:]) if word[0] in "+-~" else ("", word)
        if name in GROUPS:
            yield from (sign + each for each in words_of(GROUPS[name]))
        else:
            yield word


def matches(short: str, pattern: str) -> bool:
    if pattern.endswith(".*"):
        return short == pattern[:-2] or short.startswith(pattern[:-1])
    return short == ("" if pattern == "dibs" else pattern)


def own_package(short: str, row: str, words: set[str]) -> str:
    """The package whose modules a module may always import: of `stores.redis.lua` it is `stores.redis`."""
    if "own" in words:
        return row
    head = row.removesuffix(".*")
    parts = short.split(".")
    if row.endswith(".*") and len(parts) > head.count(".") + 1:
        return ".".join(parts[: head.count(".") + 2]) + ".*"
    return row.removesuffix(".*")


def problems_of(module: Module, known: Mapping[str, Module]) -> list[str]:
    """What in a module is against its row."""
    row = row_of(module.short)
    if row is None:
        return [f"{module.name}: has no row in layers.toml: decide its layer"]
    words, found = set(words_of(ROWS[row])), []
    ours = [word for word in words if word[0] not in "+-~"]
    ours.append(own_package(module.short, row, words))
    for name, line in imports_of(module, known):
        top = name.split(".")[0]
        if top == "dibs":
            short = name.removeprefix("dibs").removeprefix(".")
            allowed = any(matches(short, pattern) for pattern in ours)
        elif top in sys.stdlib_module_names:
            allowed = f"-{top}" not in words or f"~{top}" in words
        else:
            allowed = f"+{top}" in words or "+*" in words
        if not allowed:
            found.append(f"{module.name}:{line}: imports {name} (row {row!r})")
    if "no-async" in words:
        found += [
            f"{module.name}:{node.lineno}: awaits (row {row!r})"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
        ]
    return found


def test_imports_follow_the_table() -> None:
    assert {"dibs.model", "dibs.core.ledger"} <= set(MODULES)
    assert [line for module in MODULES.values() for line in problems_of(module, MODULES)] == []


def test_each_row_is_of_a_module() -> None:
    assert {row_of(module.short) for module in MODULES.values()} == set(ROWS)


@pytest.mark.parametrize(
    ("name", "text", "is_allowed"),
    [
        ("stores.redis", "from . import memory", False),
        ("stores.redis.lua", "from ..memory import MemoryBackend", False),
        ("stores.redis", "def f():\n    import dibs.stores.sqlite", False),
        ("server.app", "import prometheus_client", False),
        ("locks.lock", "import asyncio.locks", False),
        ("core.ledger", "async def f(): ...", False),
        ("core.ledger", "from time import monotonic", False),
        ("somewhere", "import sys", False),
        ("stores.redis.lua", "from . import scripts\nfrom .scripts import ACQUIRE", True),
        ("cli.run", "from dibs import sync\nfrom dibs.cli import output\nimport click", True),
        ("core.ledger", "from math import inf\nfrom .book import Book", True),
    ],
)  # fmt: skip
def test_what_the_table_allows(name: str, text: str, *, is_allowed: bool) -> None:
    module = Module(f"dibs.{name}", ast.parse(text))
    assert (problems_of(module, {**MODULES, module.name: module}) == []) == is_allowed
