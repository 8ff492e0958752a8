"""Processes that contend for a lock, die with it, or try it once, on stores without a clock."""

import subprocess
import sys
import time
from pathlib import Path

CONTENDER = """
import os, sys, time
from dibs.sync import connect
url, folder, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
marker, tokens, cycles = folder + "/here", folder + "/tokens", 0
with connect(url) as client:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with client.lock("contended", ttl=10) as lease:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # fails if somebody is here
            with open(tokens, "a") as told:
                told.write(f"{lease.token}\\n")
            lease.ensure()
            os.unlink(marker)
        cycles += 1
print(cycles)
"""

HOLDER = """
import sys, time
from dibs.sync import connect
with connect(sys.argv[1]) as client:
    lease = client.lock(sys.argv[2], ttl=float(sys.argv[3])).acquire()
    print(lease.token, flush=True)
    time.sleep(60)
"""

TRY = """
import sys
from dibs.sync import connect
with connect(sys.argv[1]) as client:
    lease = client.lock("held", ttl=2).try_acquire()
    print(lease.token if lease else 0)
"""


def contend(url: str, folder: Path, *, seconds: float, processes: int = 4) -> list[int]:
    """Let processes take turns, each alone; return the cycles of each. Tokens must rise."""
    command = [sys.executable, "-c", CONTENDER, url, str(folder), str(seconds)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    told = [process.communicate(timeout=seconds + 60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * processes
    tokens = list(map(int, (folder / "tokens").read_text().split()))
    assert tokens == sorted(set(tokens))
    cycles = list(map(int, told))
    assert sum(cycles) == len(tokens)
    return cycles


def killed_holder(url: str, name: str, ttl: float) -> int:
    """Let a process acquire a lock, and kill it. Returns the token that it had."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, url, name, str(ttl)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        token = int(holder.stdout.readline())
        holder.kill()
    return token


def seconds_until_a_lone_try_succeeds(url: str, ttl: float, patience: float) -> float:
    """Kill a holder; then processes that are all new try once. Return when the one began that succeeded."""
    token = killed_holder(url, "held", ttl)
    died = time.monotonic()
    while (began := time.monotonic()) < died + patience:
        found = subprocess.run(
            [sys.executable, "-c", TRY, url], stdout=subprocess.PIPE, check=True, text=True
        )
        if int(found.stdout):
            assert int(found.stdout) > token
            return began - died
    raise AssertionError(f"no lone try succeeded within {patience} s")
