"""All blocks of code on all pages: Python is type-checked, shell lines are parsed, and so are data files.

Many of them are run by other tests too. A block that imports something is a program: it defines every name
that it uses, but those in `GIVEN`. One without imports is a fragment.
"""

import json
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[2]

GIVEN = {"MyStore", "Order", "app", "client", "connection", "lease", "lock", "write"}
"""Names that blocks can use without a definition: the text around them says what these are."""

HEADER = (
    "# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, "
    "allow-any-generics, no-warn-return-any, "
    'disable-error-code="top-level-await,import-untyped,untyped-decorator,misc,var-annotated"\n'
)
"""Types that a page leaves out; `await` at the top, as in `python -m asyncio`."""

BLOCK = re.compile(r"^([ ]*)```([a-z]+)[^\n]*\n(.*?)^[ ]*```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    page: Path
    line: int
    """The line of the page with its first line."""
    language: str
    text: str


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_in(page: Path, text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield Block(page, line, found[2], textwrap.dedent(found[3]))


BLOCKS = [block for page in pages() for block in blocks_in(page, page.read_text("utf-8"))]


def in_language(*names: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in names]


def type_errors(blocks: list[Block], folder: Path) -> list[str]:
    """The errors of mypy in these blocks, as page and line."""
    files = {}
    for block in blocks:
        name = re.sub(r"\W", "_", str(block.page.relative_to(ROOT)))
        file = folder / f"{name}_{block.line}.py"
        file.write_text(HEADER + "\n" * (block.line - 2) + block.text, "utf-8")
        files[file.name] = block
    options = ["--no-error-summary", "--hide-error-context", "--config-file"]
    options += [str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", *options, *files]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = (re.match(r"(\S+\.py):(\d+): error: (.*)", line) for line in done.stdout.splitlines())
    errors = [(files[each[1]], each[2], each[3]) for each in found if each]
    return [
        f"{block.page.relative_to(ROOT)}:{line}: {message}"
        for block, line, message in errors
        if not is_left_out(block, message)
    ]


def is_left_out(block: Block, message: str) -> bool:
    """Whether the error is about what the page, and not the block, defines."""
    if named := re.match(r'Name "(\w+)" is not defined', message):
        return named[1] in GIVEN or not re.search(r"^\s*(import|from) ", block.text, re.MULTILINE)
    if "import-not-found" in message:  # a file of the page, or a library that is not installed here
        return 'named "dibs' not in message
    return "outside async function" in message or "| None" in message  # a page need not check all


def test_python_is_type_checked(tmp_path: Path) -> None:
    assert type_errors(in_language("python", "py"), tmp_path) == []


def test_a_mistake_is_found(tmp_path: Path) -> None:
    text = """
        ```python
        from dibs import Lock, Lokc
        from dibs.nosuch import x

        async with Lock("x", tll="30s") as lease:
            lease.ensure(2, 3)
        order.pay()
        ```
    """
    page = ROOT / "docs/made-up.md"
    (block,) = blocks_in(page, textwrap.dedent(text))
    errors = type_errors([block], tmp_path)
    assert [int(each.split(":")[1]) for each in errors] == [3, 4, 6, 7, 8]


def commands(block: Block) -> str:
    """The shell lines of a block; of a session, those after a prompt, and lines that continue them."""
    if block.language != "console":
        return block.text
    return "".join(
        line.removeprefix("$ ").removeprefix("> ") + "\n"
        for line in re.findall(r"^(?:\$ |> )(?:.*\\\n)*.*$", block.text, re.MULTILINE)
    )


def test_shell_lines_are_parsed() -> None:
    for block in in_language("sh", "bash", "shell", "console"):
        done = subprocess.run(
            ["bash", "-n"], input=commands(block), capture_output=True, text=True, check=False
        )
        assert not done.stderr, f"{block.page}:{block.line}: {done.stderr}"


READ: dict[str, Any] = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load_all}


@pytest.mark.parametrize("language", READ)
def test_data_is_parsed(language: str) -> None:
    for block in in_language(language):
        list(READ[language](block.text))
