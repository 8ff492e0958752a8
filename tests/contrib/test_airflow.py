"""A task of Airflow, in an environment of its own that `make env-servers` makes."""

import subprocess
from pathlib import Path

import pytest

from dibs.sync import connect
from tests.pages import write_files
from tests.servers.binaries import ROOT, MissingServer
from tests.servers.waiting import wait_until

PYTHON = ROOT / ".tools/airflow/bin/python"

RUN = """
import runpy, sys
from airflow.utils.db import initdb
initdb()
runpy.run_path("dags/warehouse.py", run_name="__main__")
"""


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.once
@pytest.mark.multiprocess
def test_a_task_waits_for_the_lock_and_returns_its_token(tmp_path: Path) -> None:
    if not PYTHON.exists():
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
    log = tmp_path / "log"
    with connect(url) as client, client.lock("warehouse:orders") as lease, log.open("w") as file:
        lock = client.lock("warehouse:orders")
        with subprocess.Popen(
            [PYTHON, "-c", RUN], cwd=tmp_path, env=settings, stdout=file, stderr=subprocess.STDOUT
        ) as airflow:
            try:
                wait_until(
                    lambda: lock.status().waiting == 1 or airflow.poll() is not None,
                    "it waits",
                    within=200,
                )
                lease.release()
                airflow.wait(timeout=90)
            finally:
                airflow.kill()
        text = log.read_text("utf-8")
        assert "state=success" in text, text
        assert f"Returned value was: {lock.status().last_token}" in text
