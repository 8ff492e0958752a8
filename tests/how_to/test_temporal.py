"""How to lock a resource in Temporal: an activity with `@needs_lock`, and workflows in fair mode."""

import os
import re
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

import pytest

from tests.pages import write_files
from tests.servers.temporal import TemporalServer

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]


def printed(program: str, folder: Path, server: TemporalServer) -> str:
    """What a program of the page prints. It must neither warn nor log."""
    write_files("how-to/temporal.md", folder)
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        cwd=folder,
        env={
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "DIBS_URL": f"sqlite:///{folder}/leases.db",
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_TASK_QUEUE": "permits-of-how-to",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_activities_take_turns(tmp_path: Path, temporal_server: TemporalServer) -> None:
    out = printed("picking.py", tmp_path, temporal_server)
    turns = re.findall(r"picking order (\d) of acme, with token (\d{16})\npicked order \1\n", out)
    assert {order for order, _ in turns} == set("012"), out
    assert turns == sorted(turns, key=itemgetter(1))


def test_workflows_in_fair_mode(tmp_path: Path, temporal_server: TemporalServer) -> None:
    out = printed("partner.py", tmp_path, temporal_server)
    calls = re.findall(r"order (\d) calls .* slot ([01]), with token (\d{16})\n", out)
    assert {order for order, _, _ in calls} == set("012345")
    for slot in "01":  # a slot has one holder after the other
        tokens = [token for _, used, token in calls if used == slot]
        assert tokens == sorted(set(tokens))
