"""Makes `src/dibs/sync.py`, for threads, of `src/dibs/_api.py`, which is written for asyncio.

    python tools/unasync.py           write it
    python tools/unasync.py --check   fail if it is not what it would be

The coroutines of the primitives are awaited on one side and stepped on the other, so an `await` becomes a
`step(...)`. What is defined in `_api.py` itself becomes a plain call. Where the two sides differ by more, the
threads' side calls a function by another name (`NAMES`) or says another sentence (`SENTENCES`).
"""

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from dibs.lazy import SHARED

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/dibs/_api.py"
TARGET = ROOT / "src/dibs/sync.py"

HEADER = '''\
# Generated from `_api.py` by `tools/unasync.py`: change that file, and run the tool.
"""Only one at a time, everywhere: leases on shared resources, for threads.

`dibs` has the same names, for asyncio.
"""

'''
FOOTER = """
if TYPE_CHECKING:
    {shared}
    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = public_names(__name__, __name__)
"""
MODULES = {"dibs.runtime.aio": "dibs.runtime.threads"}
NAMES = {
    "AsyncIterator": "Iterator",
    "AsyncRuntime": "ThreadRuntime",
    "aclose": "close",
    "body_of_task": "body_of_thread",
    "join_async": "join_blocking",
    "loop_runtime": "thread_runtime",
    "refuse_in_workflow": "refuse_in_loop",
    "until_sigterm": "step_until_sigterm",
}
AWAITED = {"Acquisition", "Awaitable", "Awaited"}
"""Classes of what is awaited on the other side."""

STEPPED = {"until_sigterm"}
"""Functions that are given a coroutine, and step it themselves."""

HOMES = {name: module for module, names in SHARED.items() for name in names.split()}
"""The module of each public name that both sides share."""

CONSTANTS = {"MAY_AWAIT": False, "SIDE": "dibs.sync"}

ENTER = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
OTHER_WAY = {
    **ENTER,
    **{blocking: asynchronous for asynchronous, blocking in ENTER.items()},
}
"""`with` becomes what is wrong to write, and says so, where it was `async with`."""

SENTENCES = {
    "held by an asyncio task": "held by a thread",
    "held by a task: write `async with`, not `with`": "held by a thread: write `with`, not `async with`",
    "of dibs is for asyncio: write `async with`, or import": "of dibs.sync blocks: write `with`, or import",
    "from dibs.sync for `with`": "from dibs for `async with`",
    "If the lease is lost inside the block, the task is cancelled, and the block raises `LeaseLost` instead "
    "of `CancelledError`. Outside of `async with` nothing is interrupted: check `lost`, call `ensure()`, or "
    "await `wait_lost()`.": "If the lease was lost, the end of the block raises `LeaseLost`. A thread cannot "
    "be interrupted: call `ensure()` between steps, which raises once the lease is lost.",
    "If one is lost inside the block, the task is cancelled, and the block raises `LeaseLost`, which names "
    "the lost one, instead of `CancelledError`.": "If one was lost, the end of the block raises `LeaseLost`, "
    "which names it. A thread cannot be interrupted: call `ensure()` between steps, which raises once one is "
    "lost.",
    "across tasks, processes": "across threads, processes",
    "Cancellation: a cancelled acquire": "Interrupts: an interrupted acquire",
    "Expiry and cancellation:": "Expiry and interrupts:",
    "A cancelled acquire": "An interrupted acquire",
    "await it to get a lease, or use it with `async with`": "return the lease, a context manager",
    "await it to get the leases, or use it with `async with`": "return the leases, a context manager",
    ", and awaited if it is a coroutine function. It runs in the waiting task": ". It runs in the waiting "
    "thread",
    "; with `cancel=True` it is cancelled in time, and `LeaseLost` is raised.": ", as a thread cannot be "
    "interrupted; with `cancel=True` the end raises `LeaseLost`.",
    "If the term ends, the body is cancelled and `LeaseLost` raised.": "If the term has ended, the end of "
    "the block raises `LeaseLost`.",
    "If the term ends earlier, the body is cancelled and `LeaseLost` raised.": "If the term ends earlier, "
    "`term.ensure()` and the end of the block raise `LeaseLost`; a thread is not interrupted.",
    "; they can be coroutine functions": "",
    "`async with": "`with",
    "= await ": "= ",
    "`await ": "`",
}
ANY_SENTENCE = re.compile("|".join(map(re.escape, sorted(SENTENCES, key=len, reverse=True))))
WIDTH = 108


class Unasync(ast.NodeTransformer):
    """Turns the module for asyncio into the one for threads."""

    def __init__(self, tree: ast.Module) -> None:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        self.own = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
        self.used: set[str] = set()
        self.imported: set[str] = set()

    # -- functions and what they await ------------------------------------------------------------------

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        plain: Any = like(node, ast.FunctionDef)
        plain.name = ENTER.get(node.name, node.name)
        return self._function(plain)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        match node.returns:
            case ast.Subscript(
                value=ast.Name(id="Coroutine"), slice=ast.Tuple(elts=[_, _, result])
            ):
                node.returns = result
                node.name = ENTER.get(node.name, node.name)
                last = node.body[-1]
                assert isinstance(last, ast.Return)
                assert last.value is not None
                call = stepped(last.value)
                gives_none = isinstance(result, ast.Constant)
                node.body[-1] = ast.Expr(call) if gives_none else ast.Return(call)
                return self._function(node)
        if node.name in OTHER_WAY:  # it helps those who write `with` for `async with`
            other: Any = like(node, ast.AsyncFunctionDef)
            other.name = OTHER_WAY[node.name]
            return self._function(other)
        return self._function(node)

    def _function(self, node: Any) -> ast.AST:
        self._reword(node)
        self.generic_visit(node)
        return node  # type: ignore[no-any-return]

    def visit_Await(self, node: ast.Await) -> ast.AST:
        call = node.value
        assert isinstance(call, ast.Call), ast.unparse(node)
        is_plain = self._is_plain(call.func)
        self.generic_visit(node)
        return call if is_plain else stepped(call)

    def _is_plain(self, function: ast.expr) -> bool:
        """It is defined here, or is a plain function on this side."""
        if isinstance(function, ast.Name):
            return function.id in STEPPED
        assert isinstance(function, ast.Attribute)
        root: ast.expr = function
        while isinstance(root, ast.Attribute):
            root = root.value
        is_ours = isinstance(root, ast.Name) and root.id == "self"
        return function.attr in NAMES or (is_ours and function.attr in self.own)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        match node.body:
            case [ast.Expr(value=ast.Yield(value=ast.Name()))]:
                return ast.Expr(ast.YieldFrom(node.iter))
        return like(node, ast.For)

    # -- names ------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = NAMES.get(node.id, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = NAMES.get(node.attr, node.attr)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        if node.module == "dibs":
            return None  # this is the other side
        node.module = MODULES.get(node.module or "", node.module)
        for each in node.names:
            each.name = NAMES.get(each.name, each.name)
            if each.name in HOMES:
                each.asname = each.name  # so that type checkers know it for public
                self.imported.add(each.name)
        return node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        self.generic_visit(node)
        return node if node.body else None

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        match node.targets:
            case [ast.Name(id=name)] if name in CONSTANTS:
                node.value = ast.Constant(CONSTANTS[name])
        return node

    # -- what only asyncio has --------------------------------------------------------------------------

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST | None:
        if node.name in AWAITED:
            return None
        self._reword(node)
        self.generic_visit(node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in AWAITED:
            return node.slice
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in AWAITED:
            return stepped(node.args[0])
        return node

    # -- words ------------------------------------------------------------------------------------------

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            node.value = self._replaced(node.value)
        return node

    def _reword(self, node: Any) -> None:
        """Change the sentences of a docstring, paragraph by paragraph, and break its lines anew."""
        text = ast.get_docstring(node)
        if text is None:
            return
        paragraphs = text.split("\n\n")
        for number, paragraph in enumerate(paragraphs):
            changed = self._replaced(" ".join(paragraph.split()))
            if changed != " ".join(paragraph.split()):
                indent = node.col_offset + 4
                lines = textwrap.wrap(
                    changed, WIDTH - indent, break_on_hyphens=False, break_long_words=False
                )
                paragraphs[number] = "\n".join(lines)
        inside = " " * (node.col_offset + 4)
        text = "\n\n".join(paragraphs)
        if "\n" in text:
            text = textwrap.indent(text, inside).strip() + "\n" + inside
        node.body[0].value.value = text

    def _replaced(self, text: str) -> str:
        def replaced(found: re.Match[str]) -> str:
            self.used.add(found[0])
            return SENTENCES[found[0]]

        return ANY_SENTENCE.sub(replaced, text)


def like(node: ast.AST, kind: type[ast.AST]) -> ast.AST:
    """A node of another kind with the same fields."""
    return ast.copy_location(kind(**{name: getattr(node, name) for name in node._fields}), node)


def stepped(coroutine: ast.expr) -> ast.expr:
    """`step(coroutine)`."""
    match coroutine:
        case ast.Call(func=ast.Name(id=name), args=[inner]) if name in AWAITED:
            coroutine = inner
    return ast.Call(func=ast.Name(id="step"), args=[coroutine], keywords=[])


def generated() -> str:
    """The text of `sync.py`."""
    text = SOURCE.read_text(encoding="utf-8")
    tree = ast.parse(text)
    tree.body = tree.body[1:]  # the header has a docstring of its own
    transformer = Unasync(tree)
    body = ast.unparse(ast.fix_missing_locations(transformer.visit(tree)))
    if unused := [each for each in SENTENCES if each not in transformer.used]:
        raise SystemExit(f"tools/unasync.py: nobody says {unused[0]!r} any more")
    shared = "\n    ".join(
        f"from {HOMES[name]} import {name} as {name}"
        for name in HOMES
        if name not in transformer.imported
    )
    imports = "from dibs.lazy import public_names\nfrom dibs.runtime.port import step\n"
    text = HEADER + imports + re.sub(r"(?m)^(class|def|type) ", r"\n\n\1 ", body) + "\n"
    text += FOOTER.format(shared=shared)
    text = ruff("check", "--fix-only", "--select", "F401,I", text=text)
    text = re.sub(r'(?m)^"([^"].*)"$', r'"""\1"""', ruff("format", text=text))
    return ruff("format", text=text)


def ruff(*command: str, text: str) -> str:
    """What ruff makes of a text."""
    run = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(
        run, input=text, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def main() -> None:
    """Write the file, or check it."""
    text = generated()
    if "--check" not in sys.argv:
        TARGET.write_text(text, encoding="utf-8")
    elif TARGET.read_text(encoding="utf-8") != text:
        raise SystemExit("src/dibs/sync.py is not what tools/unasync.py makes of _api.py: run it")


if __name__ == "__main__":
    main()
