"""`dibs verify`: a verdict on a store, in words and as JSON, however it ends."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from dibs.testing.torture.plan import PRIMITIVES
from tests.cli.processes import Cli, alive, end
from tests.cli.test_terminal import session
from tests.servers.waiting import wait_until
from tests.torture.planted import PASSWORD, announce

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--ttl", "0.6s", "--processes", "4", "--tasks", "1")
PATIENT = 120.0

pytestmark = [pytest.mark.once, pytest.mark.multiprocess, pytest.mark.timeout(PATIENT)]


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False  # it has been killed meanwhile


def progress(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What it says of itself next."""
    assert process.stderr is not None
    said: dict[str, Any] = json.loads(process.stderr.readline())
    assert said["event"] == "progress", said
    return said


@pytest.fixture
def planted(cli: Cli, tmp_path: Path) -> dict[str, str]:
    """An environment with a third party's store that may have a bug."""
    announce(tmp_path)
    return cli.environment | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


# -- what can't be tried ---------------------------------------------------------------------------


def test_a_store_of_one_process_is_refused(cli: Cli) -> None:
    done = cli("verify", "memory://")
    assert done.returncode == 64
    assert "a memory:// store only lives as long as this command" in done.stderr
    assert done.stdout == ""


def test_a_store_that_is_not_there(cli: Cli) -> None:
    done = cli("verify", "sqlite:////proc/nowhere/leases.db", "--json")
    assert done.returncode == 69
    assert json.loads(done.stderr)["exit_code"] == 69
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (("nosuch://x",), "is not the URL of a store"),
        (("--ttl", "1ms"), "ttl is 0.001 s"),
        (("--seconds", "0"), "a second to a week"),
        (("--primitives", "lock,mutex"), "there is no 'mutex'; give some of lock, semaphore"),
        (("--seconds", "soon"), "write it as"),
        (("sqlite:///x", "--url", "sqlite:///y"), "given twice"),
    ],
)
def test_wrong_usage(cli: Cli, wrong: tuple[str, ...], hint: str) -> None:
    done = cli("verify", *wrong)
    assert done.returncode == 64
    assert hint in done.stderr


# -- what is tried ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.serial
def test_it_tells_what_was_done_and_leaves_nothing(cli: Cli) -> None:
    process = cli.start("verify", "--json", "--seconds", "12", "--seed", "3", *SHORT)
    first = progress(process)
    assert first["of"] == 12
    started = children(process.pid)
    assert len(started) == 4
    out, _ = process.communicate(timeout=PATIENT)
    verdict = json.loads(out)
    assert verdict["outcome"] in ("clean", "inconclusive"), verdict["violations"]
    assert process.returncode == {"clean": 0, "inconclusive": 2}[verdict["outcome"]]
    assert verdict["seed"] == 3
    assert verdict["tokens"] >= verdict["cycles"] > 50
    assert sum(verdict["faults"].values()) >= sum(verdict["holders_hit"].values())
    assert verdict["violations_per_cycle_below"] == pytest.approx(3 / verdict["cycles"])
    assert set(verdict["primitives"]) == set(PRIMITIVES)
    told = sum(each["cycles"] for each in verdict["primitives"].values())
    assert told <= verdict["cycles"] + sum(verdict["faults"].values()), "killed between two counts"
    assert all(each["violations"] == 0 for each in verdict["primitives"].values())
    assert verdict["left"] is None
    assert cli("list", verdict["prefix"], "--json").stdout == ""
    assert not [pid for pid in started if alive(pid)]


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.serial
def test_some_primitives_on_a_server(cli: Cli, redis_url: str) -> None:
    some = ("--primitives", "tasklock, lock")
    process = cli.start("verify", redis_url, "--json", "--seconds", "6", *some, *SHORT)
    out, err = process.communicate(timeout=PATIENT)
    assert out, err
    verdict = json.loads(out)
    assert verdict["violations"] == []
    assert verdict["cycles"] > 20
    assert list(verdict["primitives"]) == ["lock", "tasklock"]
    assert verdict["primitives"]["tasklock"]["resources"] == 2
    assert verdict["doubts"] == [] or process.returncode == 2


@pytest.mark.slow
@pytest.mark.serial
def test_a_planted_bug_is_told(cli: Cli, planted: dict[str, str], tmp_path: Path) -> None:
    url = f"planted://{tmp_path / 'planted.db'}?bug=two-at-once"
    few = ("--primitives", "lock", "--locks", "2")
    process = cli.start("verify", url, "--seconds", "4", *few, *SHORT, env=planted)
    out, err = process.communicate(timeout=PATIENT)
    assert process.returncode == 1, err
    assert out.startswith("VIOLATED: planted://")
    assert "more held it at once than may: overlap on 'lock:dibs-verify-" in out
    assert "Not tried:" in out
    history = next(line for line in out.splitlines() if "recorded is in" in line).split()[-1]
    assert list(Path(history).glob("history-*.jsonl"))
    shutil.rmtree(history)


# -- how it ends -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_verdict(cli: Cli, signum: signal.Signals) -> None:
    process = cli.start("verify", "--json", "--seconds", "600", *SHORT)
    assert progress(process)["cycles"] > 0
    started = children(process.pid)
    process.send_signal(signum)
    code, out, _ = end(process)
    verdict = json.loads(out)
    assert code == 128 + signum
    assert verdict["ended_early"] is True
    assert verdict["cycles"] > 0
    assert verdict["seconds"] < 30
    assert started
    assert not [pid for pid in started if alive(pid)]


@pytest.mark.slow
@pytest.mark.serial
def test_killed_it_takes_its_processes_along(cli: Cli, tmp_path: Path) -> None:
    """Also those that it has stopped."""
    environment = cli.environment | {"TMPDIR": str(tmp_path)}  # its folder stays behind
    process = cli.start("verify", "--json", "--seconds", "600", "--ttl", "4s", env=environment)
    progress(process)
    wait_until(lambda: any(map(stopped, children(process.pid))), "a pause")
    started = children(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(alive, started)), "the end of its processes")


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("place", ["variable", "file"])
def test_no_command_line_shows_the_password(
    cli: Cli, planted: dict[str, str], tmp_path: Path, place: str
) -> None:
    url = f"planted://me:{PASSWORD}@{tmp_path / 'planted.db'}"
    if place == "file":
        (tmp_path / "dibs.toml").write_text(f'url = "{url}"')
        environment = planted | {"DIBS_CONFIG": str(tmp_path / "dibs.toml")}
        del environment["DIBS_URL"]
    else:
        environment = planted | {"DIBS_URL": url}
    process = cli.start("verify", "--json", "--seconds", "600", *SHORT, env=environment)
    progress(process)
    shown = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(process.pid)]
    assert len(shown) == 4
    assert all(b"torture.worker" in line for line in shown)
    assert not any(PASSWORD.encode() in line for line in shown)
    process.send_signal(signal.SIGINT)
    _, out, err = end(process)
    assert json.loads(out)["cycles"] > 0
    assert PASSWORD not in out + err


@pytest.mark.slow
@pytest.mark.serial
def test_a_terminal_shows_a_bar_that_goes_away(cli: Cli) -> None:
    with session(cli, "verify", "--seconds", "600", *SHORT) as at:
        at.wait_for("starting")
        at.wait_for("faults, ")
        at.wait_for("━")
        at.type("\x03")
        at.wait_for("ended early")
        at.wait_for("Not tried:")
        assert at.report() == "exited 130"


@pytest.mark.slow
@pytest.mark.serial
def test_elsewhere_a_plain_line_now_and_then(cli: Cli) -> None:
    process = cli.start("verify", "--seconds", "600", *SHORT)
    assert process.stderr is not None
    began = time.monotonic()
    assert "faults for 10 min 0 s" in process.stderr.readline(), "it says before how long it takes"
    lines = [process.stderr.readline() for _ in range(2)]
    assert all(line.startswith("dibs: ") and " cycles, " in line for line in lines)
    assert "\x1b" not in "".join(lines)
    assert time.monotonic() - began > 6
    process.send_signal(signal.SIGINT)
    assert end(process)[0] == 130
