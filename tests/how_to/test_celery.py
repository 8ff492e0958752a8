"""A worker of docs/how-to/celery.md, with a Redis."""

import signal
import sys

import pytest

from dibs.sync import connect
from tests.how_to.programs import Programs, printed
from tests.servers.process import ServerProcess

PAGE = "how-to/celery.md"


def test_one_task_is_retried_and_the_other_skipped(
    programs: Programs, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.edit("tasks.py", "redis://localhost:6379/0", redis_url)
    programs.edit("tasks.py", "time.sleep(2)", "time.sleep(0.2)")
    programs.environment["DIBS_URL"] = redis_url
    monkeypatch.setenv("DIBS_URL", redis_url)
    monkeypatch.setenv("PYTHONPATH", str(programs.folder))
    log = programs.folder / "celery.log"
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "4", "-l", "INFO"]
    worker = ServerProcess(command, log=log, end_signal=signal.SIGTERM)
    try:
        worker.wait_until(lambda: " ready." in log.read_text(), "was ready")
        with connect(redis_url) as client, client.lock("report"):
            with client.lock("sync:7"):
                send = programs.start("python send.py")
                worker.wait_until(lambda: "retry: Retry in" in log.read_text(), "retried")
            first, second, *reports = printed(send).splitlines()
    finally:
        worker.stop()
    assert first.startswith("synchronised user 7 with token ")
    assert second.startswith("synchronised user 7 with token ")
    assert first != second
    assert reports == ["skipped", "skipped"]
