"""`dibs migrate`, as a person at a prompt has it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.errors import Forbidden
from dibs.stores.postgres.schema import FORMAT, NEWEST, migrations
from dibs.sync import connect
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.connections_help import admin


def migrate(*words: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DIBS_")}
    return subprocess.run(
        [sys.executable, "-m", "dibs", "migrate", *words],
        env=clean,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def is_there(url: str) -> bool:
    with admin(url) as connection:
        return connection.execute("SELECT to_regnamespace('dibs')").fetchone() != (None,)


def test_a_dry_run_changes_nothing(postgres_url: str) -> None:
    done = migrate("--url", postgres_url, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"would apply {each.number:04} {each.name}" for each in migrations()
    ]
    assert not is_there(postgres_url)


def test_it_is_applied_once(postgres_url: str) -> None:
    first = migrate("--url", postgres_url)
    assert (first.returncode, first.stderr) == (0, "")
    applied = [line for line in first.stdout.splitlines() if line.startswith("applied")]
    assert len(applied) == len(migrations())
    assert first.stdout.startswith("applied 0001 ")
    assert is_there(postgres_url)
    again = migrate("--url", postgres_url)
    assert again.returncode == 0
    assert again.stdout.startswith(f"{postgres_url} is up to date\n")


def test_what_it_says_to_grant_is_enough(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    told = migrate("--url", postgres_url).stdout
    grants = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    theirs = postgres_url.replace("dibs@", "clerk@")
    with admin(postgres_url) as connection:
        connection.execute("CREATE ROLE clerk LOGIN")
        try:
            with connect(theirs) as client:
                with pytest.raises(Forbidden, match="GRANT USAGE ON SCHEMA dibs TO ROLE"):
                    client.lock("x").acquire(wait=0)
                for grant in grants:
                    connection.execute(grant.replace("ROLE", "clerk").encode())
                with client.lock("x") as lease:
                    lease.ensure()
        finally:
            connection.execute("DROP OWNED BY clerk")
            connection.execute("DROP ROLE clerk")


def test_json(postgres_url: str) -> None:
    secret = postgres_url.replace("dibs@", "dibs:hunter2@")
    for dry_run in (["--dry-run"], []):
        done = migrate("--url", secret, "--json", *dry_run)
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        assert found["url"] == postgres_url.replace("dibs@", "dibs:***@")
        assert found["dry_run"] is bool(dry_run)
        assert [each["number"] for each in found["migrations"]] == [*range(1, NEWEST + 1)]
    assert json.loads(migrate("--url", postgres_url, "--json").stdout)["migrations"] == []


def test_whoever_may_not_is_told(postgres_server: PostgresServer, postgres_url: str) -> None:
    with admin(postgres_url) as connection:
        connection.execute("CREATE ROLE stranger LOGIN")
        try:
            url = postgres_url.replace("dibs@", "stranger@")
            done, dry = migrate("--url", url), migrate("--url", url, "--dry-run")
        finally:
            connection.execute("DROP ROLE stranger")
    assert done.returncode == 77
    assert "permission denied" in done.stderr
    assert dry.returncode == 77
    assert dry.stdout.startswith("would apply 0001 ")
    assert dry.stderr.startswith("dibs: this role may not ")
    assert not is_there(postgres_url)


def test_a_newer_format_is_left_alone(postgres_url: str) -> None:
    assert migrate("--url", postgres_url).returncode == 0
    with admin(postgres_url) as connection:
        newer = f"Dibs: migration 99, format {FORMAT + 1}"
        connection.execute(f"COMMENT ON SCHEMA dibs IS '{newer}'".encode())
    done = migrate("--url", postgres_url)
    assert done.returncode == 69
    assert f"format {FORMAT + 1}" in done.stderr


def test_other_stores_need_none(tmp_path: Path) -> None:
    done = migrate("--url", f"sqlite:///{tmp_path}/leases.db")
    assert done.returncode == 0
    assert "needs no migrations" in done.stdout


def test_a_server_that_is_away() -> None:
    done = migrate("--url", "postgresql://127.0.0.1:1/x")
    assert done.returncode == 69
    assert "127.0.0.1:1/x can't be reached" in done.stderr
