"""The examples of pages, as they stand there, and what they say when they are run."""

import ast
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str, language: str = "python") -> list[str]:
    """The blocks of code of a page in `docs/`, from the top."""
    text = (DOCS / page).read_text("utf-8")
    return re.findall(
        rf"^```{language}(?: title=[^\n]*)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )


def write_files(page: str, folder: Path) -> None:
    """Write each block of a page that has a title (```` ```python title="shop.py" ````) to that file."""
    text = (DOCS / page).read_text("utf-8")
    files = re.findall(r'^```\w+ title="(.+?)"\n(.*?)^```', text, re.DOTALL | re.MULTILINE)
    assert files, f"{page} has no block with a title"
    for name, content in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, "utf-8")


def pattern_of(told: str) -> str:
    """A pattern for the output that a page shows: `…` is for what differs from run to run."""
    return ".*".join(map(re.escape, told.split("…")))


def promise_of(source: str) -> str:
    """A pattern for what a program prints: the `Prints: ` lines of its docstring, one after the other."""
    docstring = ast.get_docstring(ast.parse(source)) or ""
    told = re.findall(r"^Prints: (.*)", docstring, re.MULTILINE)
    return r"(?:.*\n)*?.*".join(map(pattern_of, told))


def run(code: str, folder: Path, **settings: str) -> str:
    """What a program prints that runs in that folder, with these settings: unset, the store is a file in it.

    It must end well, and neither warn nor log.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=settings or {"DIBS_URL": f"sqlite:///{folder}/leases.db"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout
