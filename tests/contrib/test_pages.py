"""The programs of the pages about other libraries: Airflow, Alembic, APScheduler, logging, job queues."""

import json
import queue
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED  # type: ignore[import-untyped]
from apscheduler.schedulers.background import BackgroundScheduler  # type: ignore[import-untyped]
from sqlalchemy import create_engine, inspect

import dibs
from dibs import as_current
from dibs.contrib.logging import add_lease
from dibs.sync import connect
from tests.cli.processes import end
from tests.how_to.programs import Programs
from tests.pages import blocks, write_files
from tests.servers.binaries import ROOT, MissingServer
from tests.servers.process import ServerProcess
from tests.servers.waiting import wait_until

AIRFLOW = ROOT / ".tools/airflow/bin/python"

WAREHOUSE = """
import runpy, sys
from airflow.utils.db import initdb
initdb()
runpy.run_path("dags/warehouse.py", run_name="__main__")
"""


@pytest.mark.timeout(300)
@pytest.mark.long  # half a minute of Airflow's own work, and no code of ours is for it alone
def test_a_task_of_airflows_holds_the_lock_and_returns_its_token(tmp_path: Path) -> None:
    if not AIRFLOW.exists():
        raise MissingServer("Airflow is missing: run `make env-servers`")
    write_files("integrations/airflow.md", tmp_path)
    url = f"sqlite:///{tmp_path}/leases.db"
    settings = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "DIBS_URL": url,
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": "/usr/bin:/bin",
    }
    told = subprocess.check_output(
        [AIRFLOW, "-c", WAREHOUSE], cwd=tmp_path, env=settings, text=True
    )
    assert "state=success" in told, told
    with connect(url) as client:
        assert f"Returned value was: {client.status('warehouse:orders').last_token}" in told


REVISION = """
from alembic import op
import sqlalchemy as sa

revision, down_revision = "1", None

def upgrade():
    print("upgrading")
    op.create_table("orders", sa.Column("id", sa.Integer))
"""


@pytest.mark.once
@pytest.mark.multiprocess
@pytest.mark.parametrize("command", ["alembic upgrade head", "python upgrade.py"])
def test_one_alembic_migrates_and_the_other_finds_nothing_to_do(
    command: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with Programs("integrations/alembic.md", tmp_path) as programs:
        url = f"sqlite:///{tmp_path}/shop.db"
        if command.startswith("alembic"):
            programs.url = request.getfixturevalue("postgres_url")  # both in one database
            url = programs.url.replace("postgresql:", "postgresql+psycopg:")
        else:  # without the lock in env.py
            programs.edit("migrations/env.py", "migrating as lease, ", "")
            programs.edit("migrations/env.py", "lease.ensure()", "pass")
        (tmp_path / "migrations/versions").mkdir()
        (tmp_path / "migrations/versions/1.py").write_text(REVISION)
        (tmp_path / "alembic.ini").write_text(
            f"[alembic]\nscript_location = %(here)s/migrations\nsqlalchemy.url = {url}\n"
            "path_separator = os\n"
        )
        with connect(programs.url) as client, client.lock("alembic:shop"):
            replicas = [programs.shell(command) for _ in range(2)]
            wait_until(lambda: client.status("alembic:shop").waiting == 2, "both wait", within=90)
        ends = [end(replica) for replica in replicas]
    assert sorted((code, out) for code, out, _ in ends) == [(0, ""), (0, "upgrading\n")], ends
    engine = create_engine(url)
    assert inspect(engine).has_table("orders")
    engine.dispose()


def test_one_scheduler_runs_the_job_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files("integrations/apscheduler.md", tmp_path)
    (job,) = runpy.run_path(str(tmp_path / "jobs.py"))["scheduler"].get_jobs()
    done: queue.SimpleQueue[object] = queue.SimpleQueue()
    with connect(f"sqlite:///{tmp_path}/leases.db", default=True), ExitStack() as stack:
        for _ in range(3):
            scheduler = BackgroundScheduler(timezone="UTC")
            scheduler.add_listener(done.put, EVENT_JOB_EXECUTED)
            scheduler.add_job(job.func, misfire_grace_time=None)  # now
            scheduler.start()
            stack.callback(scheduler.shutdown)
        for _ in range(3):
            done.get(timeout=30)
    assert capsys.readouterr().out.count("report, with token") == 1


@pytest.mark.multiprocess
def test_logging_and_structlog_name_the_lease(tmp_path: Path) -> None:
    with Programs("integrations/logging.md", tmp_path) as programs:
        _, _, plain = end(programs.shell("python -W error app.py"))
        structured = programs.run("python -W error structured.py")
    assert re.fullmatch(r"INFO lock:order:42 \d{16} packed\nINFO - 0 done\n", plain)
    first, second = map(json.loads, structured.splitlines())
    assert first.pop("token") > 10**15
    assert first == {"day": "monday", "event": "written", "lease": "lock:report:monday"}
    assert second == {"event": "done"}


async def test_a_field_of_the_users_own_is_kept() -> None:
    async with dibs.connect("memory://") as client, client.lock("x") as lease:
        with as_current(lease):
            event = add_lease(None, "info", {"lease": "mine"})
    assert event == {"lease": "mine", "token": lease.token}


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "library",
    [
        "arq",
        "dramatiq",
        "rq",
        *(pytest.param(x, marks=pytest.mark.long) for x in ("huey", "taskiq")),
    ],
)
def test_jobs_of_one_key_do_not_overlap(
    library: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"integrations/{library}.md"
    write_files(page, tmp_path)
    for file in tmp_path.iterdir():
        file.write_text(re.sub(r"redis://[^\"]*", redis_url, file.read_text()))
    [console] = blocks(page, "console")
    export, start, send, *printed = console.splitlines()
    assert (export[:17], send) == ("$ export DIBS_URL", "$ python send.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIBS_URL", redis_url)
    program, *options = shlex.split(re.sub(r"redis://\S*", redis_url, start[2:-2]))
    program = str(Path(sys.executable).with_name(program))
    worker = ServerProcess([program, *options], log=tmp_path / "worker.log")
    lines = re.compile(rb"^(?:begin|end) monday$", re.MULTILINE)
    try:
        subprocess.run([sys.executable, "send.py"], check=True)
        wait_until(lambda: len(lines.findall(worker.logged())) >= 4, "both have run")
        assert [line.decode() for line in lines.findall(worker.logged())] == printed
        assert b"LeaseLost" not in worker.logged()

        subprocess.run([sys.executable, "send.py"], check=True)
        wait_until(lambda: len(lines.findall(worker.logged())) >= 5, "one of them runs")
        with connect(redis_url) as client:
            lock = client.lock("report:monday")
            wait_until(lambda: lock.revoke(reason="a test", now=True), "one of them holds it")
        wait_until(lambda: b"LeaseLost" in worker.logged(), "it fails")
    finally:
        worker.stop()
        print(worker.logged().decode())
