"""The lease in records of `logging` and events of structlog."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dibs import as_current, connect
from dibs.contrib.logging import add_lease
from tests.pages import write_files


@pytest.mark.multiprocess
def test_the_programs_of_the_page_log_the_lease(tmp_path: Path) -> None:
    write_files("integrations/logging.md", tmp_path)
    plain = printed_by("app.py", tmp_path).stderr
    assert re.fullmatch(r"INFO lock:order:42 \d{16} packed\nINFO - 0 done\n", plain)
    first, second = map(json.loads, printed_by("structured.py", tmp_path).stdout.splitlines())
    assert first.pop("token") > 10**15
    assert first == {"day": "monday", "event": "written", "lease": "lock:report:monday"}
    assert second == {"event": "done"}


def printed_by(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    settings = {"DIBS_URL": f"sqlite:///{folder}/leases.db"}
    command = [sys.executable, "-W", "error", program]
    return subprocess.run(
        command, cwd=folder, env=settings, capture_output=True, text=True, check=True, timeout=60
    )


async def test_asyncio_and_a_field_of_the_users_own() -> None:
    async with connect("memory://") as client, client.lock("x") as lease:
        with as_current(lease):
            event = add_lease(None, "info", {"lease": "mine"})
    assert event == {"lease": "mine", "token": lease.token}
