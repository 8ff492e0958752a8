"""Private names: of uvicorn and Starlette nobody uses any, of a running server only `inside` does."""

import re
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


@pytest.mark.parametrize(
    ("pattern", "folders", "allowed"),
    [
        (FRAMEWORKS, ("src", "tests", "benchmarks", "examples"), []),
        (SERVER, ("tests",), ["tests/server/inside.py"]),
    ],
)
def test_private_names(
    pattern: re.Pattern[str], folders: tuple[str, ...], allowed: list[str]
) -> None:
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    found = [str(file.relative_to(ROOT)) for file in files if pattern.search(file.read_text())]
    assert found == allowed
