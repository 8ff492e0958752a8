"""`dibs run` in ordinary times: exit codes, what its command gets, taking turns."""

import json
import os

import psycopg
import pytest

from dibs.sync import Client, connect
from tests.cli.processes import DIBS, PYTHON, Cli, Main, alive, end, line
from tests.servers.waiting import wait_until


def test_exits_as_the_command_does(cli: Cli) -> None:
    plain = cli.folder / "plain"
    plain.write_text("no program")
    commands = {
        ("sh", "-c", "exit 255"): 255,
        ("sh", "-c", "kill -KILL $$"): 137,
        ("no-such-command",): 127,
        (str(plain),): 126,
    }
    for command, code in commands.items():
        done = cli("run", "x", "--", *command)
        assert done.returncode == code, done.stderr
    assert "write -- sh -c '…'" in cli("run", "x", "--", "echo a; echo b").stderr
    assert not cli.status("x").holders


def test_the_command_gets_its_lease_streams_files_and_arguments(cli: Cli) -> None:
    odd = ["$HOME", "a b", "*", "--ttl", "--", "-h", ""]
    script = """
import json, os, sys
os.write(int(sys.argv[1]), b"through")
lease = {name: value for name, value in os.environ.items() if name.startswith("LEASE_")}
print(json.dumps([sys.stdin.read(), sys.argv[2:], os.getpgrp(), lease]))
"""
    reader, writer = os.pipe()
    command = ("run", "a/b c", "--", *PYTHON, script, str(writer), *odd)
    done = cli(*command, typed="one\n", pass_fds=[writer])
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "through"
    text, arguments, group, lease = json.loads(done.stdout)
    assert (text, arguments) == ("one\n", odd)
    assert not alive(group), "the warden ends too"
    assert lease.pop("LEASE_OWNER").startswith(f"{os.uname().nodename}/")
    assert lease == {
        "LEASE_NAME": "a/b c",
        "LEASE_KEY": "lock:a/b c",
        "LEASE_TOKEN": str(cli.status("a/b c").last_token),
        "LEASE_SLOT": "0",
        "LEASE_SLOTS": "0",
    }


def test_what_is_held_is_not_acquired(cli: Cli, client: Client, verb: Main) -> None:
    with client.lock("x", note="\x1b[31mspring cleaning"):
        for options, code in ((["-n"], 75), (["-w0.1", "-E", "9"], 9)):
            done = cli("run", "x", *options, "--", "echo", "never")
            assert (done.returncode, done.stdout) == (code, "")
            assert "spring cleaning" in done.stderr
            assert "\x1b" not in done.stderr, "the note of another cannot drive the terminal"
        quiet = cli("run", "x", "-nq", "--", "echo", "never")
        assert (quiet.returncode, quiet.stdout, quiet.stderr) == (75, "", "")
        assert "\x1b" not in verb("show", "x").out + verb("list").out


def test_a_waiter_is_in_the_queue_and_gets_its_turn(cli: Cli, client: Client) -> None:
    lease = client.lock("x").acquire()
    waiter = cli.start("run", "x", "--priority", "3", "--note", "me too", "--", "echo", "mine")
    news = line(waiter, "stderr")
    assert news.startswith("dibs: waiting for x")
    assert lease.owner in news
    (place,) = wait_until(lambda: client.status("x").waiters, "a place in the queue")
    assert place.owner.split("/")[1] == str(waiter.pid)
    assert (place.priority, place.note) == (3, "me too")
    lease.release()
    assert end(waiter)[:2] == (0, "mine\n")
    assert not client.lock("x").locked()


def test_a_lock_delay_keeps_others_out_after_the_lease_expired(cli: Cli, client: Client) -> None:
    cli.hold("x", "--ttl", "1s", "--lock-delay", "10m").kill()
    wait_until(lambda: client.status("x").holders[0].state == "retained", "the end of the lease")
    assert client.lock("x").try_acquire() is None


def test_a_capacity_lets_several_run_in_slots_of_their_own(cli: Cli, client: Client) -> None:
    gpu = ("run", "gpu", "--capacity", "3")
    pair = cli.start(*gpu, "--units", "2", "--", "sh", "-c", "echo $LEASE_SLOTS; read x", stdin=-1)
    slots = [int(slot) for slot in line(pair).split(",")]
    with client.semaphore("gpu", 3).acquire() as single:
        assert sorted([*slots, single.slot]) == [0, 1, 2]
        assert cli(*gpu, "--no-wait", "--", "true").returncode == 75
    no_utf_8 = b"\xff\x01x"
    cli.hold(no_utf_8, "--kind", "semaphore")
    assert client.status(no_utf_8, "semaphore").capacity == 1, "what `@needs_lock` holds"


def test_a_warning_if_the_name_is_in_use_under_another_kind(cli: Cli, client: Client) -> None:
    with client.lock("x"), client.semaphore("y", 2).acquire(units=2):
        several = cli("run", "x", "--capacity", "2", "--", "true")
        one = cli("run", "y", "--", "true")
    assert several.returncode == one.returncode == 0
    assert "x is also in use as a lock" in several.stderr
    assert "To use the lock, leave out --capacity" in several.stderr
    assert "y is also in use as a semaphore" in one.stderr
    assert "add --capacity 2" in one.stderr


def test_what_the_command_left_in_the_background_is_left_alone(cli: Cli) -> None:
    done = cli("run", "x", "--", "sh", "-c", "sleep 60 >&- 2>&- <&- & echo $!")
    sleeper = int(done.stdout)
    cli.adopt_group(sleeper)
    assert alive(sleeper)


@pytest.mark.parametrize(
    ("outer", "inner", "code"),
    [
        ("x", "x --wait 1h", 64),
        ("x --capacity 2", "x --capacity 2", 0),
        ("x --capacity 2 --units 2", "x --capacity 2", 64),
    ],
)
def test_a_run_within_a_run_is_no_deadlock(cli: Cli, outer: str, inner: str, code: int) -> None:
    done = cli("run", *outer.split(), "--", *DIBS, "run", *inner.split(), "--", "echo", "went on")
    assert (done.returncode, done.stdout) == (code, "" if code else "went on\n")
    assert ('"dibs run" around this command holds x' in done.stderr) is (code == 64)


def test_options_behind_a_command_without_dashes_are_the_commands(cli: Cli, client: Client) -> None:
    done = cli("run", "-n", "x", "echo", "-q", "-E", "3", "--json", "--help")
    assert (done.returncode, done.stdout) == (0, "-q -E 3 --json --help\n")
    with client.lock("x"):
        busy = cli("run", "-n", "x", "echo", "-q", "--json")
    assert busy.returncode == 75
    assert busy.stderr.startswith("dibs: "), "neither quiet nor JSON: those are options of echo"


def test_a_transaction_that_keeps_the_name_is_waited_for(cli: Cli, postgres_url: str) -> None:
    cli.url = postgres_url
    with connect(postgres_url) as client, psycopg.connect(postgres_url) as transaction:
        client.lock("x", ttl="60s").acquire(within=transaction)
        done = cli("run", "x", "--wait", "0.5s", "-E", "9", "--", "echo", "never")
        assert (done.returncode, done.stdout) == (9, ""), done.stderr
        assert "a transaction that has not ended" in done.stderr
        assert cli("run", "y", "--no-wait", "--", "echo", "held").stdout == "held\n"
        transaction.rollback()
