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


def source(tool: Any, script: str) -> Any:
    """A source of one program that lies at an unusual place in its package."""

    def fetch(scratch: Path) -> str:
        folder = scratch / "tree" / "deep" / "programs"
        folder.mkdir(parents=True)
        (folder / "redis-server").write_text(f"#!/bin/sh\n{script}\n")
        return "deep/programs"

    return tool.Source("redis-1.2.3", ["redis-server"], lambda: True, fetch)


def test_what_is_missing_is_put_in_place_once_and_what_other_pins_brought_goes(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "sources", lambda: [source(tool, "echo Redis server v=1.2.3")])
    (tool.SERVERS / "redis-1.2.2" / "bin").mkdir(parents=True)
    assert tool.main() == 0
    assert [folder.name for folder in tool.SERVERS.iterdir()] == ["redis-1.2.3"]
    program = tool.SERVERS / "redis-1.2.3" / "bin" / "redis-server"
    assert tool.binaries._probe(program).label == "redis-1.2.3"
    assert "fetching redis-1.2.3" in capsys.readouterr().err
    assert tool.main() == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_what_does_not_run_is_reported_and_left_out(
    tool: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ci: str,
    status: int,
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(tool, "sources", lambda: [source(tool, "echo no such library >&2; exit 1")])
    assert tool.main() == status
    assert "no such library" in capsys.readouterr().err
    assert list(tool.SERVERS.iterdir()) == []


def test_only_what_is_pinned_is_accepted(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(tool.pins()) == set(tool.WHEELS)
    assert all("--hash=sha256:" in pin for pin in tool.pins().values())

    def pack(*_command: object, cwd: Path) -> str:
        (cwd / "other.tgz").write_bytes(b"something else")
        return ""

    monkeypatch.setattr(tool, "run", pack)
    with pytest.raises(tool.Problem, match="not what was pinned"):
        tool.from_npm(next(iter(tool.NPM_SHA256))).fetch(tmp_path)


def test_a_browser_is_installed_by_root_only(
    tool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(tool, "run", lambda *words, cwd: asked.append(words))
    monkeypatch.setattr(tool.os, "geteuid", lambda: 1000)
    with pytest.raises(tool.Problem, match="install chromium yourself"):
        tool.apt_install("chromium")(tmp_path)
    assert asked == []
