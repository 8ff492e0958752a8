"""Nothing of a command outlives its lease, however `dibs run` fares."""

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from dibs.sync import Client
from tests.cli.processes import LONG, PYTHON, Cli, alive, children, end, line, state
from tests.servers.waiting import wait_until

TTL = 1.5

type Process = subprocess.Popen[str]

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


def started(cli: Cli, *how: str, ttl: float = TTL) -> tuple[Process, list[int], Path]:
    """A run whose command writes down its life; its processes, and where they write."""
    diary = cli.folder / "diary"
    run = cli.start("run", "x", "--ttl", f"{ttl}s", "--", *PYTHON, BEATS, str(diary), *how)
    pids = [int(line(run)) for _ in range(2 if "family" in how else 1)]
    for pid in pids:
        cli.adopt_group(pid)
    wait_until(lambda: diary.exists() and diary.stat().st_size, "a first beat")
    return run, pids, diary


def last_beat(diary: Path) -> float:
    return max(float(text) for text in diary.read_text().split("\n")[:-1])


def next_turn(client: Client) -> float:
    """The time at which another holder has the lock."""
    with client.lock("x"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_command_ends_with_its_killed_or_stopped_run(
    cli: Cli, client: Client, blow: signal.Signals
) -> None:
    run, pids, diary = started(cli, "stubborn", "family")
    run.send_signal(blow)
    begun = next_turn(client)
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
    wait_until(lambda: not any(map(alive, pids)), "the end, before a KILL", within=8)


def test_a_revoked_lease_ends_the_command_and_all_it_started(cli: Cli, client: Client) -> None:
    run, pids, diary = started(cli, "family")
    client.revoke("x", reason="make room")
    begun = next_turn(client)
    code, _, err = end(run)
    assert code == 76
    assert "revoked" in err
    assert len(err.splitlines()) <= 3, err
    assert not any(map(alive, pids))
    assert last_beat(diary) < begun


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


def test_a_command_has_a_grace_period_and_json_tells_of_it(cli: Cli, client: Client) -> None:
    """A revocation is noticed by the first renewal that is refused, long before the lease ends."""
    script = "trap 'echo tidied; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    run = cli.start("run", "x", "--ttl", "5s", "--json", "--", "sh", "-c", script)
    assert line(run) == "up"
    client.revoke("x", reason="make room")
    code, out, err = end(run)
    assert (code, out) == (76, "tidied\n")
    event = json.loads(err.splitlines()[-1])  # the shell has said its word before
    assert (event["event"], event["reason"], event["exit_code"]) == ("lost", "revoked", 76)
    assert event["command_exit_code"] == 3
    assert not client.status("x").holders, "released with the command's end"


def test_the_run_goes_on_without_its_warden_and_says_so(cli: Cli) -> None:
    script = "import os; print(os.getpgrp()); input()"
    run = cli.start("run", "x", "--ttl", "1s", "--", *PYTHON, script, stdin=-1)
    os.kill(int(line(run)), signal.SIGKILL)
    assert "creating" in line(run, "stderr")
    assert "warden" in line(run, "stderr")
    run.communicate("go\n", LONG)
    assert run.returncode == 0


def warden_of(run: Process) -> int:
    """The leader of the group that the command is in."""
    (warden,) = {os.getpgid(child) for child in children(run.pid)}
    return warden


def held_for(client: Client, seconds: float) -> None:
    """Wait until a lease is so old."""
    wait_until(lambda: client.status("x").holders[0].held_for > seconds, "time passes")


def test_it_ends_with_a_run_that_never_started_its_command(cli: Cli, client: Client) -> None:
    with client.lock("x"):
        waiter = cli.start("run", "x", "--", "true")
        wait_until(lambda: client.status("x").waiting, "a place in the queue")
        warden = warden_of(waiter)
        waiter.kill()
        wait_until(lambda: not alive(warden), "the warden's end")


def test_a_warden_that_was_stopped_acts_on_the_newest_times_only(cli: Cli, client: Client) -> None:
    """`kill -STOP` to the command's group stops its warden too, while the lease is renewed."""
    run = cli.hold("x", "--ttl", "0.6s")
    warden = warden_of(run)
    os.kill(warden, signal.SIGSTOP)
    wait_until(lambda: state(warden) == "T", "the warden's stop")
    held_for(client, 1.2)
    os.kill(warden, signal.SIGCONT)
    held_for(client, 1.5)  # it has had the time to act on what it was told before
    run.communicate("go\n", LONG)
    assert run.returncode == 0


def test_terminal_signals_do_not_move_it(cli: Cli) -> None:
    run = cli.hold("x")
    warden = warden_of(run)
    (command,) = set(children(run.pid)) - {warden}
    for name in ("INT", "QUIT", "HUP", "TSTP", "TTIN", "TTOU", "USR1", "ALRM", "TERM"):
        os.kill(warden, signal.Signals[f"SIG{name}"])
    run.kill()
    wait_until(lambda: not alive(command), "the command's end, which only the warden can bring")


def test_it_holds_none_of_the_streams_open(cli: Cli) -> None:
    """The run's end is the end of its output, though the warden still runs for the grace."""
    script = "trap '' TERM; echo $$; exec >&- 2>&- <&-; sleep 60"
    run = cli.start("run", "x", "--ttl", "60s", "--", "sh", "-c", script)
    command = int(line(run))
    cli.adopt_group(command)
    warden = warden_of(run)
    wait_until(lambda: not os.path.lexists(f"/proc/{command}/fd/1"), "its closed streams")
    run.kill()
    assert line(run) == ""  # its end, which comes at once, and not after the grace
    assert alive(warden)


def test_a_lease_that_the_store_has_no_more_is_reported_after_the_command(cli: Cli) -> None:
    """Nothing has noticed while the command ran: no renewal was due."""
    lose = (
        "import sqlite3, sys; file = sqlite3.connect(sys.argv[1]); "
        "file.execute('DELETE FROM lease_keys'); file.commit()"
    )
    run = cli.start("run", "x", "--ttl", "60s", "--", *PYTHON, lose, str(cli.folder / "leases.db"))
    code, _, err = end(run)
    assert code == 76
    assert "the store has no such lease any more" in err
    assert "had ended by then (its exit code: 0)" in err
