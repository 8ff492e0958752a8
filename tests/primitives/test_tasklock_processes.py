"""A task that several processes try to start at once and all the time: it starts once every `min_hold`.

Run as a program it is one of those processes: `STARTER URL FILE SECONDS`.
"""

import os
import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

import leasehold.sync
from leasehold.clock import BootClock

pytestmark = pytest.mark.once  # these kill processes, and take long

ROOT = Path(__file__).resolve().parents[2]
MIN_HOLD, MAX_HOLD = 0.3, 0.9


def keep_starting(url: str, path: str, seconds: float) -> None:
    """Write down between which times it started, and its token; some starts fail, some take long."""
    draw, end = random.Random(os.getpid()), time.monotonic() + seconds
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    clock = BootClock()
    client = leasehold.sync.connect(url)
    lock = client.task_lock("report", MIN_HOLD, MAX_HOLD)
    while time.monotonic() < end:
        asked = clock.now()
        lease = lock.try_acquire()
        if lease is None:
            time.sleep(draw.random() * 0.01)
            continue
        os.write(file, f"{asked} {clock.now()} {lease.token}\n".encode())
        try:
            with lease:
                time.sleep(draw.choice((0, 0.01, 0.1, 0.4)))
                if draw.random() < 0.3:
                    raise LookupError("a failure of the task")
        except LookupError:
            pass
    client.close()


@pytest.mark.multiprocess
@pytest.mark.slow
def test_it_starts_once_every_min_hold_whoever_is_killed(tmp_path: Path) -> None:
    draw, seconds = random.Random(2), 8.0
    url, path = f"sqlite:///{tmp_path / 'leases.db'}", tmp_path / "starts"

    def start(seconds: float) -> "subprocess.Popen[bytes]":
        module = "tests.primitives.test_tasklock_processes"
        return subprocess.Popen(
            [sys.executable, "-m", module, url, path, str(seconds)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )

    starters = [start(seconds) for _ in range(3)]
    killed: set[int] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end - 1.5:
        time.sleep(draw.uniform(0.5, 1.2))
        number = draw.randrange(3)
        starters[number].kill()
        starters[number].wait()
        killed.add(starters[number].pid)
        starters[number] = start(end - time.monotonic())
    assert [starter.wait(60) for starter in starters] == [0, 0, 0]
    starts = sorted(tuple(map(float, line.split())) for line in path.read_text().splitlines())
    # the most that can lie between two starts: we may be delayed before we look at the clock
    gaps = [late[1] - early[0] for early, late in pairwise(starts)]
    assert len(killed) > 3
    assert len(starts) > 5
    assert min(gaps) >= MIN_HOLD
    assert max(gaps) < MAX_HOLD + 3, "nobody is kept out for much longer, on a busy machine"
    tokens = [start[2] for start in starts]
    assert tokens == sorted(set(tokens))


if __name__ == "__main__":
    keep_starting(sys.argv[1], sys.argv[2], float(sys.argv[3]))
