"""Every `pip install` in source, docs and deployment files names what `pyproject.toml` has."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.stores.registry import GROUP

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FOLDERS = (
    "README.md",
    "CHANGELOG.md",
    "docs",
    "src",
    "deploy",
    "examples",
    "benchmarks",
    ".ci",
)

INSTALL = re.compile(r"""pip install ((?:--?[\w-]+ )*)(['"]?)([^\s'"`)]+)\2""")
TARGET = re.compile(r"(?P<name>[\w./-]+?)(?:\[(?P<extras>[^\]]*)\])?")
ELSEWHERE = frozenset({"tzdata", "requirements/dev.txt"})
"""A package of others that a message names, and our own pinned requirements."""


def installs() -> Iterator[tuple[str, str]]:
    """Each `pip install`, as file and line, and its first target."""
    listed = subprocess.run(
        ["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        try:
            text = (ROOT / name).read_text("utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        for found in INSTALL.finditer(text):
            yield f"{name}:{text.count('\n', 0, found.start()) + 1}", found[3]


@pytest.mark.parametrize(("place", "target"), list(installs()))
def test_every_install_line_names_this_project_and_its_extras(place: str, target: str) -> None:
    if target in ELSEWHERE:
        return
    found = TARGET.fullmatch(target)
    assert found is not None, f"{place}: cannot read {target!r}"
    assert found["name"] in (PROJECT["name"], ".", "/build"), f"{place}: {target} is not ours"
    for extra in filter(None, (found["extras"] or "").split(",")):
        is_named_by_code = extra.startswith("{") and place.startswith("src/")
        known = extra in PROJECT["optional-dependencies"]
        assert known or is_named_by_code, f"{place}: pyproject.toml has no extra {extra}"


def test_install_lines_are_found() -> None:
    places = {place.partition(":")[0] for place, _ in installs()}
    assert {"README.md", "deploy/Dockerfile", "deploy/dibs.service", "docs/serve.md"} <= places


def test_the_group_of_third_parties_stores_is_the_one_that_the_docs_name() -> None:
    assert f"in the group `{GROUP}`" in (ROOT / "docs/testing.md").read_text("utf-8")
    assert GROUP.split(".") == ["dibs", "stores"]
