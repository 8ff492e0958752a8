"""Private names: of uvicorn and Starlette nobody uses any, of a running server only `inside` does."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
FRAMEWORKS = re.compile(
    r"^\s*import (?:uvicorn\.|starlette\S*\._).*"
    r"|^\s*from (?:uvicorn\.\S+|starlette\S*\._\S+) import .*"
    r"|^\s*from (?:uvicorn|starlette)\S* import .*\b_\w+.*"
    r"|^class \w+\(uvicorn\.\w+.*",
    re.MULTILINE,
)
SERVER = re.compile(r"(?<!dibs\.)\bserver\.(?:service|_[a-z]\w*)\b")


def uses(pattern: re.Pattern[str], *folders: str) -> Iterator[str]:
    """Where a pattern occurs."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file != Path(__file__):
                found = pattern.findall(file.read_text("utf-8"))
                yield from (f"{file.relative_to(ROOT)}: {each}" for each in found)


@pytest.mark.parametrize(
    "text",
    [
        "from uvicorn.protocols.http import httptools_impl",
        "import uvicorn.server",
        "    from starlette._utils import is_async_callable",
        "from starlette.routing import _DefaultLifespan",
        "class Own(uvicorn.Server): ...",
    ],
)
def test_private_names_of_frameworks_are_found(text: str) -> None:
    assert FRAMEWORKS.search(text)
    assert not FRAMEWORKS.search("import uvicorn\nfrom starlette.routing import Route, Router")


def test_frameworks_are_used_by_what_they_document() -> None:
    assert list(uses(FRAMEWORKS, "src", "tests", "benchmarks", "examples")) == []


def test_tests_reach_into_a_server_through_one_module() -> None:
    files = {each.partition(":")[0] for each in uses(SERVER, "tests")}
    assert files == {"tests/server/inside.py"}
