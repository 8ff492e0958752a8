"""Four processes take turns on one lock; the one that holds it is killed, and the lock passes on.

`python examples/demo.py`
"""

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path

from dibs.sync import LeaseLost, connect

TTL = 2.0
WORKERS = "ABCD"
KILL_AFTER_TURNS = 6
LAST_TURNS = 4

started = time.monotonic()


def work(name: str, url: str, report: Connection) -> None:
    """Take turns for ever: this is all that a program needs to write."""
    with connect(url) as client:
        lock = client.lock("demo/printer", ttl=TTL, label=name)
        while True:
            try:
                with lock as lease:
                    report.send((name, os.getpid(), lease.token))
                    time.sleep(0.3)
            except LeaseLost as lost:
                report.send((name, os.getpid(), str(lost)))


def say(text: str) -> None:
    print(f"{time.monotonic() - started:6.2f} s  {text}", flush=True)


def follow(reports: list[Connection], turn: Callable[[str, int, int], bool]) -> None:
    """Tell of every turn, until `turn` has seen enough."""
    while True:
        for report in wait(reports, timeout=30):
            assert isinstance(report, Connection)
            try:
                name, pid, token = report.recv()
            except EOFError:
                reports.remove(report)
                continue
            lane = "    " * WORKERS.index(name)
            say(f"{lane}{name:<16}" + " " * (4 * (len(WORKERS) - 1) - len(lane)) + f"token {token}")
            if turn(name, pid, token):
                return


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'demo.db'}"
        say(f"{len(WORKERS)} processes compete for one lock; ttl {TTL:g} s, in nothing but a file")
        workers, reports = [], []
        for name in WORKERS:
            receive, send = spawn.Pipe(duplex=False)
            worker = spawn.Process(target=work, args=(name, url, send), daemon=True)
            worker.start()
            send.close()
            workers.append(worker)
            reports.append(receive)
        try:
            show(reports)
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
        say("done: at every moment there was one holder, and the tokens only ever rose")


def show(reports: list[Connection]) -> None:
    tokens: list[int] = []

    def enough(turns: int) -> Callable[[str, int, int], bool]:
        def turn(name: str, pid: int, token: int) -> bool:
            assert not tokens or token > tokens[-1], "a token did not rise"
            tokens.append(token)
            if len(tokens) < turns:
                return False
            if turns == KILL_AFTER_TURNS:
                os.kill(pid, signal.SIGKILL)
                say(f"kill -9 {pid}: {name} dies with the lock in its hands")
                say(f"its lease runs out in {TTL:g} s at most; the next in the queue gets it then")
            return True

        return turn

    follow(reports, enough(KILL_AFTER_TURNS))
    follow(reports, enough(KILL_AFTER_TURNS + LAST_TURNS))


if __name__ == "__main__":
    main()
