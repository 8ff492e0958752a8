"""The programs of the pages about job queues, in real workers with a Redis between."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import dibs.sync
from tests.pages import blocks, write_files
from tests.servers.process import ServerProcess
from tests.servers.waiting import wait_until


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.multiprocess
@pytest.mark.parametrize("library", ["arq", "dramatiq", "huey", "rq", "taskiq"])
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
        with dibs.sync.connect(redis_url) as client:
            lock = client.lock("report:monday")
            wait_until(lambda: lock.revoke(reason="a test", now=True), "one of them holds it")
        wait_until(lambda: b"LeaseLost" in worker.logged(), "it fails")
    finally:
        worker.stop()
        print(worker.logged().decode())
