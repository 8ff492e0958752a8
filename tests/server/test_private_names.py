"""Code and tests use uvicorn and Starlette by what these document: no private module, name or attribute.

And only `inside` knows the parts of a running server, so that these can change without the tests.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once  # what is written says the same to each version of Python

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "examples")
FRAMEWORKS = ("uvicorn", "starlette")

OF_SERVER = {"serve", "started", "should_exit", "config"}
"""What may be used of a `uvicorn.Server`."""


def framework_of(module: str) -> str:
    """Which of them a module belongs to; empty if to none."""
    top = module.partition(".")[0]
    return top if top in FRAMEWORKS else ""


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def dotted(node: ast.expr) -> str:
    """`a.b.c` as text, through calls too; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        begin = dotted(node.value)
        return f"{begin}.{node.attr}" if begin else ""
    return dotted(node.func) if isinstance(node, ast.Call) else ""


class Reader(ast.NodeVisitor):
    """Finds what one file does that it may not do.

    `servers` are attributes that hold a `uvicorn.Server` in some file; see `kept_servers`.
    """

    def __init__(self, servers: frozenset[str] = frozenset()) -> None:
        self.found: list[str] = []
        self._theirs: set[str] = set()
        """Names in this file for what is one of theirs, or was made by it."""
        self._final: set[str] = set()
        """Those of uvicorn: nothing there is made for subclasses."""
        self._servers = servers

    def _complain(self, node: ast.AST, what: str) -> None:
        self.found.append(f"line {getattr(node, 'lineno', 0)}: {what}")

    def _import(self, node: ast.AST, module: str) -> None:
        if is_private(module) or module.startswith("uvicorn."):
            self._complain(node, f"imports {module}")

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            if framework_of(each.name):
                self._import(node, each.name)
                self._theirs.add(each.asname or framework_of(each.name))
                if framework_of(each.name) == "uvicorn":
                    self._final.add(each.asname or "uvicorn")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or not framework_of(module):
            return
        self._import(node, module)
        for each in node.names:
            if is_private(each.name):
                self._complain(node, f"imports {module}.{each.name}")
            self._theirs.add(each.asname or each.name)
            if framework_of(module) == "uvicorn":
                self._final.add(each.asname or each.name)

    def _is_theirs(self, node: ast.expr | None) -> bool:
        text = dotted(node) if node is not None else ""
        return any(text == each or text.startswith(f"{each}.") for each in self._theirs)

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._is_theirs(node.value):
            self._theirs.update(filter(None, map(dotted, node.targets)))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if self._is_theirs(node.annotation) or self._is_theirs(node.value):
            self._theirs.add(dotted(node.target))
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        if self._is_theirs(node.annotation):
            self._theirs.add(node.arg)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            if dotted(base).partition(".")[0] in self._final:
                self._complain(node, f"{node.name} changes {dotted(base)}")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if self._is_theirs(node.value) and is_private(node.attr):
            self._complain(node, f"uses {dotted(node)}")
        holder = node.value
        kept = holder.attr if isinstance(holder, ast.Attribute) else ""
        if kept in self._servers and node.attr not in OF_SERVER:
            self._complain(node, f"uses {kept}.{node.attr} of uvicorn")

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.startswith("starlette."):
            self._complain(node, f"names {node.value!r}")


def kept_servers(tree: ast.Module) -> Iterator[str]:
    """The attributes that keep a `uvicorn.Server`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and dotted(node.value) == "uvicorn.Server":
            yield from (each.attr for each in node.targets if isinstance(each, ast.Attribute))


def read(text: str, servers: frozenset[str] = frozenset()) -> list[str]:
    reader = Reader(servers)
    reader.visit(ast.parse(text))
    return reader.found


def test_frameworks_are_used_by_what_they_document() -> None:
    here = Path(__file__)
    files = [each for folder in FOLDERS for each in sorted((ROOT / folder).rglob("*.py"))]
    texts = {each: each.read_text("utf-8") for each in files if each != here}
    trees = (ast.parse(text) for text in texts.values() if "uvicorn.Server" in text)
    servers = frozenset(name for tree in trees for name in kept_servers(tree))
    assert servers, "the service keeps one"
    watched = (*FRAMEWORKS, *servers)
    found = [
        f"{file.relative_to(ROOT)}, {complaint}"
        for file, text in texts.items()
        if any(word in text for word in watched)
        for complaint in read(text, servers)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "from uvicorn.protocols.http import httptools_impl",
        "import uvicorn.server",
        "from starlette._utils import is_async_callable",
        "import starlette._exception_handler",
        "from starlette.routing import _DefaultLifespan",
        "def f():\n    from starlette._utils import get_route_path",
        "import uvicorn\nuvicorn.Config('x')._load()",
        "import uvicorn\nserver = uvicorn.Server(None)\nserver._serve()",
        "import uvicorn\ndef f(self):\n    self.s = uvicorn.Server(None)\n    self.s._serve()",
        "import uvicorn\nclass Own(uvicorn.Server): ...",
        "from uvicorn import Server\nclass Own(Server): ...",
        "from starlette.requests import Request\ndef f(request: Request): return request._receive",
        "from starlette.requests import Request\nr: Request = g()\nr._send",
        "from starlette.responses import Response as R\nR()._wrap()",
        "scope['starlette.exception_handlers']",
        "world.front._kept.server_state",
    ],
)
def test_what_is_private_is_found(text: str) -> None:
    assert read(text, frozenset({"_kept"}))


@pytest.mark.parametrize(
    "text",
    [
        "from starlette.routing import Route, Router",
        "import uvicorn\nserver = uvicorn.Server(uvicorn.Config('x'))\nserver.should_exit = True",
        "from starlette.requests import Request\ndef f(request: Request): return request.headers",
        "self._request = 1\nself._request._own",
        "from starlette.responses import Response\nclass A(Response):\n    def f(self): self._own = 1",
        "world.front._kept.should_exit",
        "import sys\nsys.modules['starlette'] = None",
    ],
)
def test_what_is_public_may_be_used(text: str) -> None:
    assert read(text, frozenset({"_kept"})) == []


INSIDE = re.compile(r"(?<!dibs\.)\bserver\.(service|_[a-z]\w*)\b")


def test_tests_reach_into_a_server_through_one_module() -> None:
    ours = {Path(__file__), ROOT / "tests/server/inside.py"}
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if file not in ours
        for match in INSIDE.finditer(file.read_text("utf-8"))
    ]
    assert found == []
    assert INSIDE.search((ROOT / "tests/server/inside.py").read_text("utf-8"))
