"""`dibs run` in ordinary times: exit codes, the child's world, taking turns."""

import json
import os
import subprocess
import sys

import pytest

from tests.cli.processes import DIBS, LONG, PYTHON, Cli, alive, end, line
from tests.servers.waiting import wait_until


@pytest.mark.parametrize("code", [0, 1, 3, 75, 255])
def test_exits_as_the_command_does(cli: Cli, code: int) -> None:
    assert cli("run", "x", "--", "sh", "-c", f"exit {code}").returncode == code


def test_a_command_ended_by_a_signal_exits_as_in_a_shell(cli: Cli) -> None:
    assert cli("run", "x", "--", "sh", "-c", "kill -KILL $$").returncode == 128 + 9


def test_a_missing_command_is_127(cli: Cli) -> None:
    done = cli("run", "x", "--", "there-is-no-such-command")
    assert done.returncode == 127
    assert done.stderr == "dibs: command not found: there-is-no-such-command\n"
    assert "write -- sh -c '…'" in cli("run", "x", "--", "echo a; echo b").stderr
    assert cli("show", "x").returncode == 1


def test_a_command_that_is_no_program_is_126(cli: Cli) -> None:
    plain = cli.folder / "plain"
    plain.write_text("no program")
    assert cli("run", "x", "--", str(plain)).returncode == 126
    assert cli("run", "x", "--", str(cli.folder)).returncode == 126


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


def test_stdin_is_the_commands(cli: Cli) -> None:
    assert cli("run", "x", "--", "cat", input="one\ntwo\n").stdout == "one\ntwo\n"


def test_an_inherited_file_is_the_commands_too(cli: Cli) -> None:
    reader, writer = os.pipe()
    script = "import os, sys; os.write(int(sys.argv[1]), b'through')"
    done = cli("run", "x", "--", *PYTHON, script, str(writer), pass_fds=[writer])
    os.close(writer)
    assert done.returncode == 0
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "through"


def test_no_shell_touches_the_arguments(cli: Cli) -> None:
    odd = ["$HOME", "a b", "*", "--ttl", "--", "-h", ""]
    done = cli("run", "x", "--", *PYTHON, "import sys, json; print(json.dumps(sys.argv[1:]))", *odd)
    assert json.loads(done.stdout) == odd


def test_a_pipeline_ends_with_the_command(cli: Cli) -> None:
    shell = f"{' '.join(DIBS)} run x -- echo hi | cat"
    done = subprocess.run(  # noqa: PLW1510 - its code is what is tested
        ["sh", "-c", shell], env=cli.environment, capture_output=True, text=True, timeout=LONG
    )
    assert done.stdout == "hi\n"


def test_it_is_held_while_the_command_runs_and_released_after(cli: Cli) -> None:
    holder = cli.hold("x", stdin=subprocess.PIPE)
    assert cli("show", "x").returncode == 0
    code, _, err = end(holder)  # closes its stdin
    assert (code, err) == (1, "")
    assert cli("show", "x").returncode == 1


def test_a_second_one_is_turned_away_or_waits_its_time(cli: Cli) -> None:
    cli.hold("x", "--note", "spring cleaning", stdin=subprocess.PIPE)
    for options in (["--no-wait"], ["--wait", "0.2"]):
        done = cli("run", "x", *options, "--", "echo", "never")
        assert done.returncode == 75
        assert done.stdout == ""
        assert "spring cleaning" in done.stderr
        assert "Traceback" not in done.stderr
    assert cli("run", "x", "--no-wait", "-E", "9", "--", "echo", "never").returncode == 9


def test_a_second_one_gets_its_turn_and_keeps_stdout_clean(cli: Cli) -> None:
    holder = cli.hold("x", stdin=subprocess.PIPE)
    second = cli.start("run", "x", "--", "echo", "mine")
    assert second.stderr is not None
    told = second.stderr.readline()
    assert told.startswith("dibs: waiting for x")
    assert "(0 s)" not in told
    assert f"/{holder.pid}" in told
    end(holder)
    code, out, _ = end(second)
    assert (code, out) == (0, "mine\n")


def test_waiting_is_told_as_json_too(cli: Cli) -> None:
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


def test_the_same_name_under_another_kind_is_warned_of(cli: Cli) -> None:
    """With advice that can be followed."""
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


def test_a_semaphore_of_one_excludes_as_one(cli: Cli) -> None:
    """What `@needs_lock` holds with a capacity of 1 is a semaphore."""
    cli.hold("x", "--kind", "semaphore", stdin=subprocess.PIPE)
    assert cli.show("x")["kind"] == "semaphore"
    assert cli("run", "x", "--kind", "semaphore", "--no-wait", "--", "true").returncode == 75
    wrong = cli("run", "x", "--kind", "lock", "--capacity", "2", "--", "true")
    assert wrong.returncode == 64
    assert "a lock has one holder" in wrong.stderr


def test_the_warden_goes_when_the_run_does(cli: Cli) -> None:
    done = cli("run", "x", "--", *PYTHON, "import os; print(os.getpgrp())")
    assert not alive(int(done.stdout))


def test_what_the_command_left_in_the_background_is_left_alone(cli: Cli) -> None:
    done = cli("run", "x", "--", "sh", "-c", "sleep 60 >&- 2>&- <&- & echo $!")
    sleeper = int(done.stdout)
    cli.adopt_group(sleeper)
    assert alive(sleeper)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["run", "x"], "dibs run NAME [OPTIONS] -- CMD [ARGS]..."),
        (["run", "x", "--"], "no command given"),
        (["run", "x", "-n", "true"], "put -- before the command"),
        (["run", "x", "-c", "echo hi"], "put -- before the command"),
        (["run", "-n", "x"], "no command given"),
        (["serve", "--store", "redis://h"], "give a URL with --leases"),
        (["keys", "list", "--store", "redis://h"], "give a URL with --leases"),
        (["move", "a/", "--store", "a", "--url", "https://h"], "give either --server or --store"),
        (["run", "--", "x", "true"], "NAME stands before --"),
        (["run", "x", "--timeout", "5", "--", "true"], "Use --wait TIME."),
        (["run", "x", "--store", "redis://h", "--", "true"], "give a URL with --url"),
        (["run", "x", "--url", "postgresql+asyncpg://h", "--", "true"], "write postgresql://"),
        (["serve", "--url", "redis://h"], "No such option '--url'. Use --leases URL."),
        (["--url", "redis://h", "serve"], "takes no --url. Use --leases URL."),
        (["keys", "create", "--name", "ci"], "'--scope'. read, acquire, force"),
        (["run", "x", "--ttl", "soon", "--", "true"], "soon"),
        (["run", "x", "--ttl", "1ms", "--", "true"], "ttl"),
        (["run", "x", "--wait", "-1", "--", "true"], "wait is '-1': it can't be negative"),
        (["run", "x", "--wait", "1", "--no-wait", "--", "true"], "give either"),
        (["run", "x", "--units", "2", "--", "true"], "--units"),
        (["run", "", "--", "true"], "1 to 512 bytes"),
        (["run", "x", "--url", "nonsense://x", "--", "true"], "nonsense"),
        (["walk", "x"], "walk"),
        (["revoke", "x"], "--reason"),
    ],
)
def test_wrong_usage_is_64_and_says_how(cli: Cli, args: list[str], told: str) -> None:
    done = cli(*args)
    assert done.returncode == 64, done.stderr
    assert told in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert done.stdout == ""


def test_an_unreachable_store_is_69(cli: Cli) -> None:
    url = "sqlite:////proc/x.db"  # where nobody can make a file
    done = cli("run", "x", "--no-wait", "--url", url, "--", "echo", "never")
    assert done.returncode == 69, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= 2
    assert "Traceback" not in done.stderr


def test_a_password_is_never_told(cli: Cli) -> None:
    done = cli("run", "x", "--url", "nonsense://me:geheim@store/1", "--", "true")
    assert done.returncode == 64
    assert "geheim" not in done.stderr


def test_others_words_cannot_drive_the_terminal(cli: Cli) -> None:
    cli.hold("x", "--note", "\x1b[31mred", stdin=subprocess.PIPE)
    done = cli("run", "x", "--wait", "0.3", "--", "true")
    assert "red" in done.stderr
    assert "\x1b" not in done.stderr + cli("show", "x").stdout + cli("list").stdout


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_extra_it_says_what_to_install(package: str) -> None:
    missing = f"import sys; sys.modules[{package!r}] = None"
    program = f"{missing}; from dibs.cli import main; sys.exit(main())"
    done = subprocess.run(  # noqa: PLW1510 - its code is what is tested
        [sys.executable, "-c", program, "version"], capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == 64
    assert "dibs[cli]" in done.stderr


@pytest.mark.parametrize(
    ("outer", "inner", "code"),
    [
        ("x", "x -q", 64),
        ("x", "x --wait 1h", 64),
        ("x", "x --no-wait", 75),
        ("x", "y", 0),
        ("x --capacity 2", "x --capacity 2", 0),
        ("x --capacity 2 --units 2", "x --capacity 2", 64),
    ],
)
def test_it_does_not_wait_for_itself(cli: Cli, outer: str, inner: str, code: int) -> None:
    done = cli("run", *outer.split(), "--", *DIBS, "run", *inner.split(), "--", "echo", "went on")
    assert (done.returncode, done.stdout) == (code, "" if code else "went on\n")
    assert ('"dibs run" around this command holds x' in done.stderr) is (code == 64)


def test_who_waits_is_in_the_queue(cli: Cli) -> None:
    cli.hold("x", stdin=subprocess.PIPE)
    waiter = cli.start("run", "x", "--priority", "3", "--note", "me too", "--", "true")
    wait_until(lambda: cli.show("x")["waiting"] == 1, "a place in the queue")
    place = cli.show("x")["waiters"][0]
    assert place["owner"].split("/")[1] == str(waiter.pid)
    assert (place["priority"], place["note"]) == (3, "me too")


def test_quiet_prints_nothing_for_cron(cli: Cli) -> None:
    cli.hold("x", stdin=subprocess.PIPE)
    for options in (["--no-wait"], ["--wait", "1s"]):
        done = cli("run", "x", "-q", *options, "--", "echo", "never")
        assert (done.returncode, done.stdout, done.stderr) == (75, "", "")
    done = cli("run", "y", "--quiet", "--", "echo", "out")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")
    broken = cli("run", "y", "-q", "--url", "nonsense://", "--", "true")
    assert (broken.returncode, "nonsense" in broken.stderr) == (64, True)
