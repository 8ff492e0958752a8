"""A worker of docs/how-to/celery.md, with a Redis."""

import signal
import sys
from pathlib import Path

import pytest

from dibs.sync import connect
from tests.how_to.programs import Programs, printed
from tests.servers.process import ServerProcess


@pytest.mark.once
@pytest.mark.multiprocess
def test_one_task_is_retried_and_the_other_skipped(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "DIBS_URL"):
        monkeypatch.setenv(name, redis_url)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = tmp_path / "celery.log"
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "4", "-l", "INFO"]
    with Programs("how-to/celery.md", tmp_path, DIBS_URL=redis_url) as programs:
        worker = ServerProcess(command, log=log, end_signal=signal.SIGTERM)
        try:
            worker.wait_until(lambda: " ready." in log.read_text(), "was ready")
            with connect(redis_url) as client, client.lock("report"):
                with client.lock("sync:7"):
                    send = programs.start(sys.executable, "send.py")
                    worker.wait_until(lambda: "retry: Retry in" in log.read_text(), "retried")
                first, second, *reports = printed(send).splitlines()
        finally:
            worker.stop()
    assert first.startswith("synchronised user 7 with token ")
    assert second.startswith("synchronised user 7 with token ")
    assert first != second
    assert reports == ["skipped", "skipped"]
