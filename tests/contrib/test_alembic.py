"""Alembic in several processes at once, with the `env.py` of the page."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

from dibs.sync import connect
from tests.pages import write_files
from tests.servers.waiting import wait_until

REVISION = """
from alembic import op
import sqlalchemy as sa

revision, down_revision = "1", None

def upgrade():
    print("upgrading")
    op.create_table("orders", sa.Column("id", sa.Integer))
"""


UPGRADE = ["-m", "alembic", "upgrade", "head"]


@pytest.mark.once
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("database", "program"),
    [("postgres", UPGRADE), ("sqlite", ["upgrade.py"])],
    ids=["postgres", "from a program"],
)
def test_one_migrates_and_the_other_finds_nothing_to_do(
    database: str, program: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    write_files("integrations/alembic.md", tmp_path)
    if program != UPGRADE:  # without the lock in env.py
        env = tmp_path / "migrations/env.py"
        text = env.read_text().replace("migrating as lease, ", "")
        env.write_text(text.replace("lease.ensure()", "pass"))
    (tmp_path / "migrations/versions").mkdir()
    (tmp_path / "migrations/versions/1.py").write_text(REVISION)
    store, url = f"sqlite:///{tmp_path}/leases.db", f"sqlite:///{tmp_path}/shop.db"
    if database == "postgres":
        store = request.getfixturevalue("postgres_url")  # both in one database
        url = store.replace("postgresql:", "postgresql+psycopg:")
    (tmp_path / "alembic.ini").write_text(
        f"[alembic]\nscript_location = %(here)s/migrations\nsqlalchemy.url = {url}\n"
        "path_separator = os\n"
    )
    upgrade = [sys.executable, *program]
    environment = os.environ | {"DIBS_URL": store}
    with connect(store) as client, ExitStack() as stack:
        lock = client.lock("alembic:shop")
        with lock:
            replicas = [
                stack.enter_context(
                    subprocess.Popen(
                        upgrade, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
                    )
                )
                for _ in range(2)
            ]
            wait_until(lambda: lock.status().waiting == 2, "both wait", within=90)
        printed = [replica.communicate(timeout=60)[0] for replica in replicas]
    assert [replica.returncode for replica in replicas] == [0, 0]
    assert sorted(printed) == ["", "upgrading\n"]
    engine = create_engine(url)
    assert inspect(engine).has_table("orders")
    engine.dispose()
