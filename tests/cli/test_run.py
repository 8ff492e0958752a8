"""`dibs run` in ordinary times: exit codes, the child's world, taking turns."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator

import psycopg
import pytest

from dibs.sync import connect
from tests.cli.processes import DIBS, LONG, PYTHON, Cli, alive, end, line
from tests.servers.waiting import wait_until


def test_exits_as_the_command_does(cli: Cli) -> None:
    for script, code in (("exit 0", 0), ("exit 75", 75), ("exit 255", 255), ("kill -KILL $$", 137)):
        assert cli("run", "x", "--", "sh", "-c", script).returncode == code
    assert cli("show", "x").returncode == 1


def test_a_command_that_cannot_be_started(cli: Cli) -> None:
    done = cli("run", "x", "--", "there-is-no-such-command")
    assert done.returncode == 127
    assert done.stderr == "dibs: command not found: there-is-no-such-command\n"
    assert "write -- sh -c '…'" in cli("run", "x", "--", "echo a; echo b").stderr
    plain = cli.folder / "plain"
    plain.write_text("no program")
    assert cli("run", "x", "--", str(plain)).returncode == 126
    assert cli("show", "x").returncode == 1


def test_the_command_finds_its_lease_in_the_environment(cli: Cli) -> None:
    script = "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if k[:6] == 'LEASE_'}))"
    done = cli("run", "a/b c", "--", *PYTHON, script)
    found = json.loads(done.stdout)
    assert found.pop("LEASE_KEY") == "lock:a/b c"
    assert set(found) == {"LEASE_NAME", "LEASE_TOKEN", "LEASE_SLOT", "LEASE_SLOTS", "LEASE_OWNER"}
    assert found["LEASE_NAME"] == "a/b c"
    assert found["LEASE_SLOT"] == found["LEASE_SLOTS"] == "0"
    assert int(found["LEASE_TOKEN"]) == cli.show("a/b c")["last_token"] > 0
    assert found["LEASE_OWNER"].startswith(f"{os.uname().nodename}/")


def test_streams_files_and_arguments_reach_the_command_as_they_are(cli: Cli) -> None:
    odd = ["$HOME", "a b", "*", "--ttl", "--", "-h", ""]
    script = "import os, sys, json; os.write(int(sys.argv[1]), b'through')"
    script += "; print(sys.stdin.read(), json.dumps(sys.argv[2:]), os.getpgrp())"
    reader, writer = os.pipe()
    done = cli(
        *("run", "x", "--", *PYTHON, script, str(writer), *odd), input="one\n", pass_fds=[writer]
    )
    os.close(writer)
    text, _, rest = done.stdout.partition("\n ")
    arguments, _, group = rest.rpartition(" ")
    assert (text, json.loads(arguments)) == ("one", odd)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "through"
    assert not alive(int(group)), "the warden ends too"


def test_it_is_held_while_the_command_runs_and_released_after(cli: Cli) -> None:
    holder = cli.hold("x", stdin=subprocess.PIPE)
    assert cli("show", "x").returncode == 0
    code, _, err = end(holder)  # closes its stdin
    assert (code, err) == (1, "")
    assert cli("show", "x").returncode == 1


def test_what_is_held_is_not_acquired(cli: Cli) -> None:
    cli.hold("x", "--note", "\x1b[31mspring cleaning", stdin=subprocess.PIPE)
    for options in (["-n"], ["--wait", "0.2"], ["-w0.1", "-E", "9"]):
        done = cli("run", "x", *options, "--", "echo", "never")
        assert (done.returncode, done.stdout) == (9 if "-E" in options else 75, "")
        assert "spring cleaning" in done.stderr
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stderr, "the note of another cannot drive the terminal"
    quiet = cli("run", "x", "-n", "-q", "--", "echo", "never")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (75, "", "")
    assert "\x1b" not in cli("show", "x").stdout + cli("list").stdout


def test_a_waiter_is_in_the_queue_and_gets_its_turn(cli: Cli) -> None:
    holder = cli.hold("x", stdin=subprocess.PIPE)
    waiter = cli.start("run", "x", "--priority", "3", "--note", "me too", "--", "echo", "mine")
    assert waiter.stderr is not None
    news = waiter.stderr.readline()
    assert news.startswith("dibs: waiting for x")
    assert f"/{holder.pid}" in news
    wait_until(lambda: cli.show("x")["waiting"] == 1, "a place in the queue")
    place = cli.show("x")["waiters"][0]
    assert place["owner"].split("/")[1] == str(waiter.pid)
    assert (place["priority"], place["note"]) == (3, "me too")
    end(holder)
    assert end(waiter)[:2] == (0, "mine\n")


def test_a_lock_delay_keeps_others_out_after_the_lease_expired(cli: Cli) -> None:
    holder = cli.hold("x", "--ttl", "1s", "--lock-delay", "10m", stdin=subprocess.PIPE)
    holder.kill()
    wait_until(lambda: cli.show("x")["holders"][0]["state"] == "retained", "the end of the lease")
    done = cli("run", "x", "--no-wait", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (75, "")


def test_a_wait_as_json(cli: Cli) -> None:
    cli.hold("x", stdin=subprocess.PIPE)
    done = cli("run", "x", "--wait", "0.5", "--json", "--", "true")
    events = [json.loads(text) for text in done.stderr.splitlines()]
    assert [event["event"] for event in events] == ["waiting", "error"]
    assert (events[0]["ahead"], events[0]["estimate"]) == (0, None)
    assert events[1]["error"] == "AcquireTimeout"
    assert events[1]["exit_code"] == done.returncode == 75
    assert events[1]["holders"][0]["token"] == cli.show("x")["holders"][0]["token"]


def test_a_capacity_lets_several_run_in_slots_of_their_own(cli: Cli) -> None:
    script = "echo $LEASE_SLOTS; read x"
    gpu = ["run", "gpu", "--capacity", "3"]
    pair = cli.start(*gpu, "--units", "2", "--", "sh", "-c", script, stdin=subprocess.PIPE)
    single = cli.start(*gpu, "--", "sh", "-c", script, stdin=subprocess.PIPE)
    slots = [int(slot) for holder in (pair, single) for slot in line(holder).split(",")]
    assert sorted(slots) == [0, 1, 2]
    assert cli(*gpu, "--no-wait", "--", "true").returncode == 75
    end(single)
    assert cli(*gpu, "--no-wait", "--", "true").returncode == 0


def test_a_warning_if_the_name_is_in_use_under_another_kind(cli: Cli) -> None:
    cli.hold("x", stdin=subprocess.PIPE)
    several = ("--capacity", "2", "--units", "2")
    done = cli("run", "x", *several, "--", "true")
    assert done.returncode == 0
    assert "x is also in use as a lock" in done.stderr
    assert "To use the lock, leave out --capacity and --units" in done.stderr
    cli.hold("y", *several, stdin=subprocess.PIPE)
    done = cli("run", "y", "--", "true")
    assert "y is also in use as a semaphore" in done.stderr
    assert "add --capacity 2" in done.stderr
    assert cli("run", "y", "--capacity", "2", "--no-wait", "--", "true").returncode == 75


def test_a_semaphore_of_one(cli: Cli) -> None:
    """What `@needs_lock` holds with a capacity of 1."""
    cli.hold("x", "--kind", "semaphore", stdin=subprocess.PIPE)
    assert cli.show("x")["kind"] == "semaphore"
    assert cli("run", "x", "--kind", "semaphore", "--no-wait", "--", "true").returncode == 75


def test_what_the_command_left_in_the_background_is_left_alone(cli: Cli) -> None:
    done = cli("run", "x", "--", "sh", "-c", "sleep 60 >&- 2>&- <&- & echo $!")
    sleeper = int(done.stdout)
    cli.adopt_group(sleeper)
    assert alive(sleeper)


def test_an_unreachable_store_is_69(cli: Cli) -> None:
    url = "sqlite:////proc/x.db"  # where nobody can make a file
    done = cli("run", "x", "--no-wait", "--url", url, "--", "echo", "never")
    assert done.returncode == 69, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("outer", "inner", "code"),
    [
        ("x", "x --wait 1h", 64),
        ("x", "x --no-wait", 75),
        ("x", "y", 0),
        ("x --capacity 2", "x --capacity 2", 0),
        ("x --capacity 2 --units 2", "x --capacity 2", 64),
    ],
)
def test_a_run_within_a_run_does_not_wait_for_itself(
    cli: Cli, outer: str, inner: str, code: int
) -> None:
    done = cli("run", *outer.split(), "--", *DIBS, "run", *inner.split(), "--", "echo", "went on")
    assert (done.returncode, done.stdout) == (code, "" if code else "went on\n")
    assert ('"dibs run" around this command holds x' in done.stderr) is (code == 64)


CRONTAB = [
    "flock -n nightly echo done",
    "flock -w 0.1 -E 3 nightly echo done",
    "flock nightly sh -c 'echo done'",
]


@pytest.mark.parametrize("line", CRONTAB)
def test_a_crontab_of_flock_changes_one_word(cli: Cli, line: str) -> None:
    changed = line.replace("flock", shlex.join([*DIBS, "run"]))

    def run() -> tuple[int, str]:
        done = subprocess.run(  # noqa: PLW1510 - its code is what is tested
            ["sh", "-c", changed], env=cli.environment, capture_output=True, text=True, timeout=LONG
        )
        return done.returncode, done.stdout

    assert run() == (0, "done\n")
    if line != CRONTAB[-1]:  # which would wait
        cli.hold("nightly", stdin=subprocess.PIPE)
        assert run() == (3 if "-E 3" in line else 75, "")


def test_options_behind_a_command_without_dashes_are_the_commands(cli: Cli) -> None:
    done = cli("run", "-n", "x", "echo", "-q", "-E", "3", "--json", "--help")
    assert (done.returncode, done.stdout) == (0, "-q -E 3 --json --help\n")
    cli.hold("x", stdin=subprocess.PIPE)
    busy = cli("run", "-n", "x", "echo", "-q", "--json")
    assert busy.returncode == 75
    assert busy.stderr.startswith("dibs: "), "neither quiet nor JSON: those are options of echo"
    missing = cli("run", "-n", "y", "no-such-command", "--json")
    assert (missing.returncode, missing.stderr[:6]) == (127, "dibs: ")


@pytest.fixture
def kept(cli: Cli, postgres_url: str) -> Iterator[Cli]:
    """A command line whose name `x` is kept by a transaction that has not ended."""
    cli.url = postgres_url
    with connect(postgres_url) as client, psycopg.connect(postgres_url) as connection:
        client.lock("x", ttl="60s").acquire(within=connection)
        yield cli
        connection.rollback()


def test_a_transaction_that_keeps_the_name_is_waited_for_and_no_more(kept: Cli) -> None:
    for options, code in ((["--no-wait"], 75), (["--wait", "0.5s", "-E", "9"], 9)):
        began = time.monotonic()
        done = kept("run", "x", *options, "--", "echo", "never")
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert "a transaction that has not ended" in done.stderr
        assert time.monotonic() - began < 8
    assert kept("run", "y", "--no-wait", "--", "echo", "held").stdout == "held\n"
