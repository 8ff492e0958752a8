"""Private names of uvicorn and Starlette: nobody uses any."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FRAMEWORKS = re.compile(
    r"^\s*import (?:uvicorn\.|starlette\S*\._).*"
    r"|^\s*from (?:uvicorn\.\S+|starlette\S*\._\S+) import .*"
    r"|^\s*from (?:uvicorn|starlette)\S* import .*\b_\w+.*"
    r"|^class \w+\(uvicorn\.\w+.*",
    re.MULTILINE,
)


def test_no_private_names_of_frameworks() -> None:
    folders = ("src", "tests", "benchmarks", "examples")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert [file for file in files if FRAMEWORKS.search(file.read_text())] == []
