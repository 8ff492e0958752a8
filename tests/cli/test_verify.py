"""`dibs verify`: a verdict on a store, in words and as JSON, however it ends."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dibs.testing.torture.plan import PRIMITIVES
from tests.cli.processes import Cli, Main, alive, children, end, state
from tests.servers.waiting import wait_until
from tests.torture.planted import PASSWORD, announce

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--ttl", "0.6s", "--processes", "4", "--tasks", "1")
PATIENT = 120.0

pytestmark = [
    *(pytest.mark.once, pytest.mark.multiprocess, pytest.mark.timeout(PATIENT)),
    *(pytest.mark.slow, pytest.mark.serial),
]


def progress(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stderr is not None
    said: dict[str, Any] = json.loads(process.stderr.readline())
    assert said["event"] == "progress", said
    return said


@pytest.fixture
def planted(cli: Cli, tmp_path: Path) -> dict[str, str]:
    """An environment with a third party's store that may have a bug."""
    announce(tmp_path)
    return cli.environment | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        ("memory://", 64, "a memory:// store only lives as long as this command"),
        ("sqlite:////proc/nowhere/leases.db", 69, "nowhere"),
        ("--seconds 0", 64, "a second to a week"),
        ("--primitives lock,mutex", 64, "there is no 'mutex'; give some of lock, semaphore"),
    ],
)
def test_what_cannot_be_tried(verb: Main, wrong: str, code: int, message: str) -> None:
    done = verb("verify", *wrong.split())
    assert (done.code, done.out) == (code, "")
    assert message in done.err


def test_a_verdict_on_a_server_of_which_nothing_is_left(
    cli: Cli, verb: Main, redis_url: str
) -> None:
    cli.url = redis_url
    process = cli.start("verify", "--json", "--seconds", "5", "--seed", "3", *SHORT)
    started = wait_until(lambda: children(process.pid), "its processes")
    assert progress(process)["of"] == 5
    out, _ = process.communicate(timeout=PATIENT)
    verdict = json.loads(out)
    assert verdict["outcome"] in ("clean", "inconclusive"), verdict["violations"]
    assert process.returncode == {"clean": 0, "inconclusive": 2}[verdict["outcome"]]
    assert verdict["seed"] == 3
    assert verdict["tokens"] >= verdict["cycles"] > 20
    assert sum(verdict["faults"].values()) >= sum(verdict["holders_hit"].values())
    assert verdict["violations_per_cycle_below"] == pytest.approx(3 / verdict["cycles"])
    assert set(verdict["primitives"]) == set(PRIMITIVES)
    assert all(each["violations"] == 0 for each in verdict["primitives"].values())
    assert verdict["left"] is None
    assert verb("list", verdict["prefix"], "--json", "--url", redis_url).out == ""
    assert not any(map(alive, started))


def test_a_planted_bug_is_found(cli: Cli, planted: dict[str, str], tmp_path: Path) -> None:
    url = f"planted://{tmp_path / 'planted.db'}?bug=two-at-once"
    few = ("--primitives", "lock", "--locks", "2")
    process = cli.start("verify", url, "--seconds", "3", *few, *SHORT, env=planted)
    out, err = process.communicate(timeout=PATIENT)
    assert process.returncode == 1, err
    assert out.startswith("VIOLATED: planted://")
    assert "more held it at once than may: overlap on 'lock:dibs-verify-" in out
    assert "Not tried:" in out
    history = next(line for line in out.splitlines() if "recorded is in" in line).split()[-1]
    assert list(Path(history).glob("history-*.jsonl"))
    shutil.rmtree(history)


def test_a_signal_ends_it_with_a_verdict_and_no_password_is_shown(
    cli: Cli, planted: dict[str, str], tmp_path: Path
) -> None:
    url = f"planted://me:{PASSWORD}@{tmp_path / 'planted.db'}"
    environment = planted | {"DIBS_STORES__BAD__URL": url}
    words = ("--store", "bad", "verify", "--json", "--seconds", "600")
    process = cli.start(*words, *SHORT, env=environment)
    assert progress(process)["cycles"] > 0
    started = children(process.pid)
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in started]
    assert len(commands) == 4
    assert all(b"torture.worker" in line for line in commands)
    assert not any(PASSWORD.encode() in line for line in commands)
    process.terminate()
    code, out, err = end(process)
    verdict = json.loads(out)
    assert code == 128 + signal.SIGTERM
    assert (verdict["ended_early"], verdict["cycles"] > 0) == (True, True)
    assert verdict["seconds"] < 30
    assert PASSWORD not in out + err
    assert not any(map(alive, started))


def test_killed_it_takes_its_processes_along(cli: Cli, tmp_path: Path) -> None:
    """Also those that it has stopped."""
    environment = cli.environment | {"TMPDIR": str(tmp_path)}  # its folder stays behind
    words = ("verify", "--json", "--seconds", "600", "--ttl", "4s", "--processes", "4")
    process = cli.start(*words, env=environment)
    wait_until(lambda: "T" in map(state, children(process.pid)), "a pause")
    started = children(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(alive, started)), "the end of its processes")
