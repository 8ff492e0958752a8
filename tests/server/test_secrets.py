"""The secret that signs tokens and sessions: not in the records, shared, replaced while servers run."""

import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import httpx2
import pytest

from dibs.cli.app import app
from dibs.errors import NotConfigured
from dibs.server.auth import credentials
from dibs.server.auth.credentials import SHORTEST, ServiceSecret
from dibs.server.config import ServerConfig, read_config
from dibs.server.records import records_for
from tests.server.inside import keys_of
from tests.server.world import World


def token_of(world: World, key: str) -> str:
    token: str = world.client(key=key).post("/v1/token").text
    return token


def status(world: World, token: str) -> int:
    answer = httpx2.get(f"{world.url}/v1/about", headers={"Authorization": f"Bearer {token}"})
    return answer.status_code


async def test_it_does_not_lie_in_the_records(tmp_path: Path) -> None:
    world = World.over(tmp_path)
    (secret,) = (tmp_path / "leases.db.secret").read_text().split()
    world.close()
    assert len(secret) == 64
    assert stat.S_IMODE((tmp_path / "leases.db.secret").stat().st_mode) == 0o600
    for file in tmp_path.glob("leases.db*"):
        if file.suffix != ".secret":
            found = file.read_bytes()
            assert secret.encode() not in found
            assert bytes.fromhex(secret) not in found
    records = records_for(f"sqlite:///{tmp_path / 'leases.db'}")
    assert await records.all("secret") == []
    await records.close()


def test_it_is_replaced_while_servers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = World.over(tmp_path), World.over(tmp_path)
    try:
        key = here.admin_key
        before = token_of(here, key)
        assert (status(here, before), status(there, before)) == (200, 200)
        records = f"sqlite:///{tmp_path / 'leases.db'}"
        app.main(["keys", "rotate-secret", "--records", records], "dibs", standalone_mode=False)
        assert "leases.db.secret" in capsys.readouterr().out
        after = token_of(there, key)
        assert (status(here, after), status(here, before)) == (200, 200)
        now = time.time()
        monkeypatch.setattr(credentials, "time", lambda: now + 100)
        for server in (here, there):  # what is known by heart ends with its lifetime
            keys_of(server)._tokens._verified.clear()
        assert (status(there, after), status(there, before)) == (200, 401)
    finally:
        there.close()
        here.close()


def test_only_a_secret_that_is_there_and_meant_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_URL", "https://locks.example.com")
    monkeypatch.setenv("HOME", str(tmp_path))
    misspelt = ["--records", f"sqlite:///{tmp_path / 'leases.bd'}"]
    for given, told in ((misspelt, "has never run"), ([], "names a service")):
        with pytest.raises((NotConfigured, click.UsageError), match=told):
            app.main(["keys", "rotate-secret", *given], "dibs", standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_a_secret_that_cant_be_used_or_is_seen_by_all_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "leases.db.secret"
    path.write_text("x" * 40)
    path.chmod(0o644)
    World.over(tmp_path).close()
    assert "leases.db.secret has mode 0644" in caplog.text
    path.write_text("short")
    with pytest.raises(NotConfigured, match="holds no secrets"):
        World.over(tmp_path)


def test_servers_that_start_at_once_share_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: ServiceSecret(path=tmp_path / "secret").newest, range(32)))
    assert len(found) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_it_is_given_by_the_environment() -> None:
    new, old = "n" * SHORTEST, "o" * SHORTEST
    environ = {"DIBS_SERVER_SECRET": f"{new},{old}", "DIBS_SERVER_RECORDS": "redis://x"}
    found = read_config(None, {}, environ).secrets()
    assert found.accepted() == (
        *ServiceSecret((new,)).accepted(),
        *ServiceSecret((old,)).accepted(),
    )
    with pytest.raises(NotConfigured, match="DIBS_SERVER_SECRET="):
        found.rotate(60)
    with pytest.raises(NotConfigured, match="characters or more"):
        read_config(None, {}, environ | {"DIBS_SERVER_SECRET": "short"}).secrets()


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "secret"
    config = ServerConfig(records="redis://x", secret_file=str(path))
    found = config.secrets()
    assert config.secrets().newest == found.newest
    first = found.newest
    found.rotate(60)
    assert found.accepted()[1] == first != found.newest
    found.rotate(60)
    assert found.accepted()[2] == first
    path.write_text("short\n")
    assert found.accepted(), "what is known stays while it is written"
    with pytest.raises(NotConfigured, match="holds no secrets"):
        ServiceSecret(path=path).accepted()
    path.unlink()
    path.mkdir()
    with pytest.raises(NotConfigured, match="holds no secrets"):
        ServiceSecret(path=path).accepted()
