"""`dibs verify`: a verdict on a store, in words and as JSON, however it ends."""

import json
import os
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from dibs.testing import Verdict
from dibs.testing.torture.plan import PRIMITIVES
from tests.cli.processes import Cli, Main, alive, children, line, state
from tests.servers.waiting import wait_until
from tests.torture.planted import PASSWORD, announce

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--ttl", "0.6s", "--processes", "4", "--tasks", "1")
PATIENT = 120.0

pytestmark = [pytest.mark.timeout(PATIENT), pytest.mark.slow, pytest.mark.serial]


def test_a_signal_ends_it_with_a_verdict_and_nothing_is_left_in_the_store(
    cli: Cli, verb: Main, redis_url: str
) -> None:
    cli.url = redis_url
    process = cli.start("verify", "--json", "--seconds", "600", "--seed", "3", *SHORT)
    progress = json.loads(line(process, "stderr"))
    assert (progress["event"], progress["of"]) == ("progress", 600)
    while progress["cycles"] < 20:
        progress = json.loads(line(process, "stderr"))
    started = children(process.pid)
    assert len(started) == 4
    process.terminate()
    out, _ = process.communicate(timeout=PATIENT)
    verdict = json.loads(out)
    assert process.returncode == 128 + signal.SIGTERM
    assert verdict["outcome"] in ("clean", "inconclusive"), verdict["violations"]
    assert (verdict["ended_early"], verdict["seed"], verdict["left"]) == (True, 3, None)
    assert verdict["seconds"] < 60
    assert verdict["tokens"] >= verdict["cycles"] >= 20
    assert sum(verdict["faults"].values()) >= sum(verdict["holders_hit"].values())
    assert verdict["violations_per_cycle_below"] == pytest.approx(3 / verdict["cycles"])
    assert set(verdict["primitives"]) == set(PRIMITIVES)
    assert all(each["violations"] == 0 for each in verdict["primitives"].values())
    assert verb("list", verdict["prefix"], "--json", "--url", redis_url).out == ""
    assert not any(map(alive, started))


def test_a_planted_bug_is_found_and_no_password_is_shown(cli: Cli, tmp_path: Path) -> None:
    announce(tmp_path)
    environment = cli.environment | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src"), str(ROOT)]),
        "DIBS_STORES__BAD__URL": f"planted://me:{PASSWORD}@{tmp_path}/planted.db?bug=two-at-once",
    }
    few = ("--primitives", "lock", "--locks", "2", *SHORT)
    process = cli.start("--store", "bad", "verify", "--seconds", "600", *few, env=environment)
    assert "at most 10 min 45 s: 10 min 0 s of faults" in line(process, "stderr")
    cycles = 0
    while cycles < 100:  # a line each 5 s
        (told,) = re.findall(r"([\d,]+) cycles, ", line(process, "stderr"))
        cycles = int(told.replace(",", ""))

    def of_workers() -> list[bytes]:  # not while one of them is being started, or has been killed
        found: list[bytes] = []
        with suppress(OSError):
            found += [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(process.pid)]
        return found if all(b"torture.worker" in each for each in found) else []

    commands = wait_until(of_workers, "all its children are workers")
    assert not any(PASSWORD.encode() in each for each in commands)
    process.terminate()
    out, err = process.communicate(timeout=PATIENT)
    assert process.returncode == 1, err
    assert out.startswith("VIOLATED: planted://")
    assert "more held it at once than may: overlap on 'lock:dibs-verify-" in out
    assert "Not tried:" in out
    assert PASSWORD not in out + err
    history = next(each for each in out.splitlines() if "recorded is in" in each).split()[-1]
    assert list(Path(history).glob("history-*.jsonl"))
    shutil.rmtree(history)


def test_a_run_that_shows_nothing_is_inconclusive(
    verb: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.testing.Torture.run", lambda _: Verdict())
    done = verb("verify", "--json")
    assert (done.code, done.objects[0]["outcome"]) == (2, "inconclusive")


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
