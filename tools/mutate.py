#!/usr/bin/env python3
"""Change one thing in `src/dibs/core` at a time, and see whether the tests notice.

    tools/mutate.py               try a sample of 120 mutants, the same each time
    tools/mutate.py --list        name all mutants
    tools/mutate.py 17 204        try these

A mutant is numbered by its place in the source. A failed test kills it, and so does the time limit.
"""

import argparse
import ast
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import hypothesis.stateful  # noqa: F401 - imported once, before the forks
import pytest

CORE = Path(__file__).resolve().parent.parent / "src" / "dibs" / "core"
VECTORS = "tests/core/test_vectors.py::test_the_ledger_answers_so_today"
STAGES = (VECTORS, "tests/core", "tests/model")
"""Tests in the order in which they are run, until one fails: the quick ones first."""
OPTIONS = ["-x", "-qq", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", "-k"]
SELECTED = "not mistake and not bug"  # what the tests plant themselves is there for the tests
SAMPLE = 120
SECONDS = 120.0

PAIRS = [
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
    *((ast.BitAnd, ast.BitOr), (ast.LShift, ast.RShift)),
]
SWAPS: dict[type, type] = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
CALLS = {"min": "max", "max": "min", "all": "any", "any": "all"}
SKIPPED_FIELDS = ("annotation", "returns", "decorator_list", "type_params")
SKIPPED = (ast.Import, ast.ImportFrom, ast.TypeAlias, ast.JoinedStr, ast.Raise)
"""Names, types and the text of messages."""


class Mutant(NamedTuple):
    path: Path
    place: int
    variant: int
    told: str

    def code(self) -> CodeType:
        tree = ast.parse(self.path.read_text())
        node, put = list(places(tree))[self.place]
        put(ast.copy_location(list(variants(node))[self.variant], node))
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


def places(tree: ast.AST) -> Iterator[tuple[Any, Callable[[ast.AST], None]]]:
    """Everything that runs, and what puts something else there."""
    for name, value in ast.iter_fields(tree):
        for at, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or isinstance(child, SKIPPED):
                continue
            text = ast.unparse(child)
            if name in SKIPPED_FIELDS or "__slots__ =" in text[:12] or "(Protocol)" in text[:30]:
                continue
            put: Any = partial(setattr, tree, name)
            if isinstance(value, list):
                put = partial(value.__setitem__, at)
            yield child, put
            yield from places(child)


def variants(node: Any) -> Iterator[Any]:
    """What might stand there instead."""
    if type(op := getattr(node, "op", None)) in SWAPS:
        yield changed(node, op=SWAPS[type(op)]())
    for at, op in enumerate(getattr(node, "ops", ())):
        if type(op) in SWAPS:
            yield changed(node, ops=[*node.ops[:at], SWAPS[type(op)](), *node.ops[at + 1 :]])
    match node:
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(str(value)) if value.isidentifier():
            yield ast.Constant(f"{value}_")
        case ast.Call(ast.Name(name)) if name in CALLS:
            yield changed(node, func=ast.Name(CALLS[name], ast.Load()))
        case ast.If(test) | ast.IfExp(test) | ast.While(test):
            yield changed(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Assign([ast.Attribute()]):
            yield ast.Pass()
        case ast.Continue():
            yield ast.Pass()


def changed(node: Any, **fields: Any) -> Any:
    new = copy(node)
    vars(new).update(fields)
    return new


def mutants() -> Iterator[Mutant]:
    for path in sorted(CORE.glob("*.py")):
        for place, (node, _) in enumerate(places(ast.parse(path.read_text()))):
            for variant, new in enumerate(variants(node)):
                change = " -> ".join(ast.unparse(each).partition("\n")[0] for each in (node, new))
                yield Mutant(path, place, variant, f"{path.name}:{node.lineno}: {change}")


def passes(mutant: Mutant | None, tests: str) -> bool:
    """Run the tests in a fork of this process. Return whether they passed, and in time."""
    end, child = time.monotonic() + SECONDS, os.fork()
    if not child:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
        for number in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        load: Any = SourceFileLoader.get_code
        SourceFileLoader.get_code = lambda self, name: (  # type: ignore[method-assign, assignment]
            mutant.code()
            if mutant and name == f"dibs.core.{mutant.path.stem}"
            else load(self, name)
        )
        os._exit(pytest.main([*OPTIONS, SELECTED, tests]))
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)
    return ended[1] == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("numbers", nargs="*", type=int, help="of the mutants to try")
    parser.add_argument("--list", action="store_true", help="name all mutants and stop")
    arguments, found = parser.parse_args(), list(mutants())
    if arguments.list:
        return print(*(f"{number} {mutant.told}" for number, mutant in enumerate(found)), sep="\n")
    drawn = random.Random(1).sample(range(len(found)), SAMPLE)
    assert all(passes(None, tests) for tests in STAGES), "the tests fail without a mutant"
    survivors = 0
    for number in arguments.numbers or drawn:
        begun = time.monotonic()
        killed = next((tests for tests in STAGES if not passes(found[number], tests)), "")
        survivors += not killed
        told = f"killed by {killed}" if killed else "SURVIVED"
        print(
            f"{number} {found[number].told}: {told}, {time.monotonic() - begun:.0f} s", flush=True
        )
    tried = len(arguments.numbers or drawn)
    print(f"{tried} of {len(found)} mutants tried, {survivors} survived")


if __name__ == "__main__":
    main()
