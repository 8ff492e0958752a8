"""Processes that contend for a lock, die with it, or try it once."""

import subprocess
import sys
from pathlib import Path

CONTENDER = """
import asyncio, os, sys, time
import dibs, dibs.sync
url, folder, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
end, cycles = 0.0, 0

def alone(lease):
    os.close(os.open(folder + "/here", os.O_CREAT | os.O_EXCL))  # fails if another one is here
    with open(folder + "/tokens", "a") as tokens:
        tokens.write(f"{lease.token}\\n")
    lease.ensure()
    os.unlink(folder + "/here")

async def main():
    global end
    async with dibs.connect(url) as client:
        await client.status("contended")
        end = time.monotonic() + seconds
        async def user():
            global cycles
            while time.monotonic() < end:
                async with client.lock("contended", ttl=10) as lease:
                    alone(lease)
                cycles += 1
        await asyncio.gather(user(), user())

if sys.argv[4] == "async":
    asyncio.run(main())
else:
    with dibs.sync.connect(url) as client:
        client.status("contended")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with client.lock("contended", ttl=10) as lease:
                alone(lease)
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


def contend(url: str, folder: Path, *, seconds: float, processes: int = 3) -> list[int]:
    """Let processes take turns, each alone; return the cycles of each. Tokens must rise."""
    command = [sys.executable, "-c", CONTENDER, url, str(folder), str(seconds)]
    running = [
        subprocess.Popen(
            [*command, "async" if number == 0 else "blocking"], stdout=subprocess.PIPE, text=True
        )
        for number in range(processes)
    ]
    printed = [process.communicate(timeout=seconds + 60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * processes
    tokens = list(map(int, (folder / "tokens").read_text().split()))
    assert tokens == sorted(set(tokens))
    cycles = list(map(int, printed))
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
