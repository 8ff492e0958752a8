"""Nothing of a command outlives its lease, however `dibs run` fares."""

import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import PYTHON, Cli, alive, end, line
from tests.servers.waiting import wait_until

TTL = 1.5

BEATS = """
import os, signal, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "family" in sys.argv and os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(1, b"%d\\n" % os.getpid())  # whole: there may be two of us
while True:
    os.write(out, b"%f\\n" % time.clock_gettime(time.CLOCK_BOOTTIME))
    time.sleep(0.005)
"""
"""Writes down when it ran, until it is ended."""


def started(cli: Cli, *how: str, ttl: float = TTL) -> tuple[Any, list[int], Path]:
    """A run whose command writes down its life; its processes, and where they write."""
    diary = cli.folder / "diary"
    run = cli.start("run", "x", "--ttl", f"{ttl}s", "--", *PYTHON, BEATS, str(diary), *how)
    pids = []
    for _ in range(2 if "family" in how else 1):
        pid = int(line(run))
        pids.append(pid)
        cli.adopt_group(pid)
    wait_until(lambda: diary.exists() and diary.stat().st_size, "a first beat")
    return run, pids, diary


def last_beat(diary: Path) -> float:
    return max(float(text) for text in diary.read_text().split("\n")[:-1])


def next_turn(cli: Cli) -> float:
    clock = "import time; print(time.clock_gettime(time.CLOCK_BOOTTIME))"
    done = cli("run", "x", "--", *PYTHON, clock)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.parametrize(
    ("blow", "how"),
    [
        (signal.SIGKILL, ()),
        (signal.SIGKILL, ("stubborn", "family")),
        (signal.SIGSTOP, ("stubborn", "family")),
    ],
)
def test_a_command_does_not_outlive_the_lease_of_a_run_that_is_killed_or_stopped(
    cli: Cli, blow: signal.Signals, how: tuple[str, ...]
) -> None:
    run, pids, diary = started(cli, *how)
    run.send_signal(blow)
    begun = next_turn(cli)
    assert last_beat(diary) < begun
    wait_until(lambda: not any(map(alive, pids)), "the end of all")
    if blow == signal.SIGSTOP:
        run.send_signal(signal.SIGCONT)
        code, _, err = end(run)
        assert code == 76
        assert "the lease on x" in err


def test_a_killed_runs_command_is_asked_to_end_at_once(cli: Cli) -> None:
    run, pids, _ = started(cli, ttl=60.0)
    run.kill()
    wait_until(lambda: not any(map(alive, pids)), "the end, long before the ttl")


def test_a_revoked_lease_ends_the_command_and_all_it_started(cli: Cli) -> None:
    run, pids, diary = started(cli, "family")
    assert cli("revoke", "x", "--reason", "make room").returncode == 0
    begun = next_turn(cli)
    code, _, err = end(run)
    assert code == 76
    assert "revoked" in err
    assert len(err.splitlines()) <= 2, err
    assert not any(map(alive, pids))
    assert last_beat(diary) < begun


def test_a_revoked_lease_ends_the_command_long_before_its_ttl(cli: Cli) -> None:
    """With the first renewal that is refused, which is due at a third of the ttl."""
    run, _, _ = started(cli, ttl=9.0)
    cli("revoke", "x", "--reason", "make room")
    assert end(run)[0] == 76
    assert cli.show("x")["holders"] == [], "released with the command's end"


def test_a_store_that_goes_away_loses_the_lease_in_time(cli: Cli) -> None:
    run, pids, diary = started(cli)
    taken = time.clock_gettime(time.CLOCK_BOOTTIME)
    file = sqlite3.connect(cli.folder / "leases.db", isolation_level=None)
    file.execute("BEGIN EXCLUSIVE")  # nobody else writes: no renewal gets through
    try:
        code, _, err = end(run)
    finally:
        file.rollback()
        file.close()
    assert code == 76
    assert "no renewal" in err
    assert not any(map(alive, pids))
    assert last_beat(diary) < taken + TTL


def test_a_command_has_a_grace_period_and_the_loss_is_shown_as_json(cli: Cli) -> None:
    script = "trap 'echo tidied; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    run = cli.start("run", "x", "--ttl", "1.5s", "--json", "--", "sh", "-c", script)
    assert line(run) == "up"
    cli("revoke", "x", "--reason", "make room")
    code, out, err = end(run)
    assert (code, out) == (76, "tidied\n")
    event = json.loads(err.splitlines()[-1])  # the shell has said its word before
    assert (event["event"], event["reason"], event["exit_code"]) == ("lost", "revoked", 76)
    assert event["command_exit_code"] == 3


def test_a_command_outlasts_many_ttls(cli: Cli) -> None:
    done = cli("run", "x", "--ttl", "0.3s", "--", "sh", "-c", "sleep 1.2; echo done")
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_the_run_goes_on_without_its_warden_and_says_so(cli: Cli) -> None:
    script = "import os; print(os.getpgrp()); input()"
    run = cli.start("run", "x", "--ttl", "1s", "--", *PYTHON, script, stdin=-1)
    os.kill(int(line(run)), signal.SIGKILL)
    assert run.stderr is not None
    assert "warden" in run.stderr.readline()
    assert run.stdin is not None
    run.stdin.write("go\n")
    assert end(run)[0] == 0
