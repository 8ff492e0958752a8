"""What must hold of the repository as a whole."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"

# In pieces, so that this file does not name them either.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
        ("maven", "org"),
        ("maven", "apache", "org"),
        ("deb", "debian", "org"),
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
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    return [path for path in paths if path.is_file()]


def offences(text: str) -> list[str]:
    lowered = text.lower()
    return [host for host in REGISTRIES if host in lowered] + HOME.findall(text)


def test_no_file_names_a_registry_or_a_home() -> None:
    files = repository_files()
    assert ROOT / "pyproject.toml" in files
    found = {
        str(path.relative_to(ROOT)): offences(path.read_bytes().decode("utf-8", "replace"))
        for path in files
    }
    assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        (f"--index-url https://{REGISTRIES[0]}/simple", True),
        ("sqlite:////" + "home/jane/locks.db", True),
        ("cd /" + "root/project", True),
        ("'/" + "Users/jane/x'", True),
        ("/home/me/locks.db", False),
        ("~/.pyenv", False),
        ("tests/root/x", False),
        ("a/home/b/c", False),
    ],
)
def test_the_search_finds_them_and_lets_examples_pass(text: str, *, is_found: bool) -> None:
    assert bool(offences(text)) == is_found


@pytest.mark.parametrize("name", ["dev", "bench", "servers", "uv"])
def test_requirements_are_pinned_with_hashes_and_name_no_address(name: str) -> None:
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=)", text, re.MULTILINE)
    bare = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    for pin in filter(None, re.split(r"^(?=\S)", bare, flags=re.MULTILINE)):
        assert re.match(r"[\w.-]+==\S+ ", pin), pin
        assert "--hash=sha256:" in pin, pin


@pytest.mark.parametrize("name", ["dev", "bench", "servers", "uv"])
def test_all_that_is_wanted_is_pinned(name: str) -> None:
    wanted = re.findall(r"^[a-z][\w.-]*", (REQUIREMENTS / f"{name}.in").read_text(), re.MULTILINE)
    pinned = re.findall(r"^([\w.-]+)==", (REQUIREMENTS / f"{name}.txt").read_text(), re.MULTILINE)
    assert wanted
    assert set(wanted) <= set(pinned), "run `make lock`"


def test_wheel_builds_offline_and_is_typed(tmp_path: Path) -> None:
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
        [metadata] = [
            archive.read(name).decode() for name in inside if name.endswith(".dist-info/METADATA")
        ]
    assert "dibs/py.typed" in inside
    pages = (ROOT / "src/dibs/server/ui/assets").rglob("*.*")
    missing = {str(page.relative_to(ROOT / "src")) for page in pages} - set(inside)
    assert missing == set(), "the dashboard's files"
    assert "dibs/server/ui/assets/index.html" in inside
    assert any(name.endswith("/LICENSE") for name in inside)
    tops = {name.split("/")[0] for name in inside if ".dist-info" not in name}
    assert tops == {"dibs"}
    needed = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    assert [line for line in needed if "extra ==" not in line] == [], "a runtime dependency"
