"""Processes that contend for a lock."""

import subprocess
import sys
from pathlib import Path

CONTENDER = """
import os, sys, time
from dibs.sync import connect
url, folder, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
cycles = 0
with connect(url) as client:
    client.status("contended")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with client.lock("contended", ttl=10) as lease:
            os.close(os.open(folder + "/here", os.O_CREAT | os.O_EXCL))  # fails if another one is here
            with open(folder + "/tokens", "a") as tokens:
                tokens.write(f"{lease.token}\\n")
            lease.ensure()
            os.unlink(folder + "/here")
        cycles += 1
print(cycles)
"""


def contend(url: str, folder: Path, *, seconds: float, processes: int = 3) -> list[int]:
    """Let processes take turns, each alone; return the cycles of each. Tokens must rise."""
    command = [sys.executable, "-c", CONTENDER, url, str(folder), str(seconds)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    printed = [process.communicate(timeout=seconds + 60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * processes
    tokens = list(map(int, (folder / "tokens").read_text().split()))
    assert tokens == sorted(set(tokens))
    cycles = list(map(int, printed))
    assert sum(cycles) == len(tokens)
    return cycles
