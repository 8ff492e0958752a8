"""What must hold of the repository as a whole."""

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.stores.registry import GROUP

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"

# In pieces, so that this file does not name them either.
REGISTRIES = [
    f"{name}.{domain}"
    for name, domain in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("crates", "io"),
        ("proxy.golang", "org"),
        ("maven", "org"),
        ("debian", "org"),
    )
]
PEOPLE_IN_EXAMPLES = ("me", "you", "user", "alice", "bob", "app")
HOME = re.compile(
    r"(?<![\w.~-])/(?:root|work/(?:main|shared)|(?:home|Users)/(?!(?:{})\b)\w+)(?=/)".format(
        "|".join(PEOPLE_IN_EXAMPLES)
    )
)


def repository_files() -> list[Path]:
    """Tracked files, and those that would be at the next `git add`."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(command, cwd=ROOT)
    paths = [ROOT / os.fsdecode(name) for name in listed.split(b"\0") if name]
    return [path for path in paths if path.is_file()]


def offences(text: str) -> list[str]:
    lowered = text.lower()
    return [host for host in REGISTRIES if host in lowered] + HOME.findall(text)


def _text_of(path: Path) -> str:
    """The text of a file; of a `Cargo.lock` without the lines that cargo needs."""
    text = path.read_bytes().decode("utf-8", "replace")
    return text.replace(CARGO_SOURCE, "") if path.name == "Cargo.lock" else text


CARGO_SOURCE = 'source = "registry+https://github.com/rust-lang/{}.{}-index"'.format("crates", "io")
"""The one line by which a `Cargo.lock` names where a package comes from."""


def test_a_cargo_lock_names_only_the_index_of_cargo() -> None:
    locks = [path for path in repository_files() if path.name == "Cargo.lock"]
    lines = [line for lock in locks for line in lock.read_text().splitlines()]
    assert {line for line in lines if line.startswith("source")} == {CARGO_SOURCE}


def test_no_file_names_a_registry_or_a_home() -> None:
    files = repository_files()
    assert ROOT / "pyproject.toml" in files
    found = {str(path.relative_to(ROOT)): offences(_text_of(path)) for path in files}
    assert {path: what for path, what in found.items() if what} == {}


def test_the_search_finds_them_and_lets_examples_pass() -> None:
    index = f"--index-url https://{REGISTRIES[0]}/simple"
    for text in (index, "sqlite:////" + "home/jane/locks.db", "cd /" + "root/project"):
        assert offences(text)
    for text in ("/home/me/locks.db", "~/.pyenv", "tests/root/x", "a/home/b/c"):
        assert not offences(text)


@pytest.mark.parametrize("name", ["dev", "bench", "servers", "uv", "airflow"])
def test_all_that_is_wanted_is_pinned_with_hashes(name: str) -> None:
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=)", text, re.MULTILINE)
    bare = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    pins = list(filter(None, re.split(r"^(?=\S)", bare, flags=re.MULTILINE)))
    assert [pin for pin in pins if not re.match(r"[\w.-]+==\S+ ", pin)] == []
    assert [pin for pin in pins if "--hash=sha256:" not in pin] == []
    wanted = re.findall(r"^[a-z][\w.-]*", (REQUIREMENTS / f"{name}.in").read_text(), re.MULTILINE)
    assert wanted
    assert set(wanted) <= {pin.partition("==")[0] for pin in pins}, "run `make lock`"
    npm = (REQUIREMENTS / "npm" / "package-lock.json").read_text()
    assert npm.count('"integrity"') == npm.count('"version"')


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FOLDERS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    ".github",
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
    """Each `pip install`, as file and target."""
    command = ["git", "ls-files", *FOLDERS]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            text = (ROOT / name).read_text("utf-8", "replace")
            yield from ((name, found[3]) for found in INSTALL.finditer(text))


def is_ours(place: str, target: str) -> bool:
    """Whether it names this project, and extras that it has."""
    found = TARGET.fullmatch(target)
    if found is None or found["name"] not in (PROJECT["name"], ".", "/build"):
        return False
    return all(
        extra in PROJECT["optional-dependencies"]
        or (extra.startswith("{") and place.startswith("src/"))  # code puts it in
        for extra in filter(None, (found["extras"] or "").split(","))
    )


def test_every_install_line_names_this_project_and_its_extras() -> None:
    found = [(place, target) for place, target in installs() if target not in ELSEWHERE]
    places = {place for place, _ in found}
    assert {"README.md", "deploy/Dockerfile", "deploy/dibs.service", "docs/serve.md"} <= places
    assert [(place, target) for place, target in found if not is_ours(place, target)] == []
    assert not is_ours("README.md", "dibs[nosuch]")


def test_the_badge_names_the_versions_of_python_that_the_package_does() -> None:
    badge = (ROOT / "docs/images/badge-python.svg").read_text("utf-8")
    versions = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if ":: 3." in each]
    assert f"<title>python: {' | '.join(versions)}</title>" in badge


def test_the_group_of_third_parties_stores_is_the_one_that_the_docs_name() -> None:
    assert f"in the group `{GROUP}`" in (ROOT / "docs/testing.md").read_text("utf-8")
