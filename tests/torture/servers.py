"""The torture on a store whose server is killed, paused and cut off: `python -m tests.torture servers`."""

import random
import tempfile
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dibs.testing import FaultProxy, Torture, TorturePlan, TortureProgress
from tests.servers.server import Server
from tests.torture.stores import STORES

PAUSE = 1.5
"""Seconds for which the server stands still, or loses what it answers."""


@contextmanager
def striking(
    server: Server, proxy: FaultProxy, every: float, seed: int, may_strike: Callable[[], bool]
) -> Iterator[Counter[str]]:
    """Let something happen to the server every so many seconds; yields what happened how often."""
    draw, over, struck = random.Random(seed), threading.Event(), Counter[str]()

    def for_a_while(begin: Callable[[], object], end: Callable[[], object]) -> None:
        begin()
        over.wait(draw.uniform(0.1, PAUSE))
        end()

    def kill() -> None:
        server.kill()
        server.start()

    faults: dict[str, Callable[[], object]] = {
        "killed and started again": kill,
        "paused": lambda: for_a_while(server.pause, server.resume),
        "connections cut": proxy.cut,
        "answers lost": lambda: for_a_while(proxy.drop_replies, proxy.heal),
        "network hung": lambda: for_a_while(proxy.hang, proxy.heal),
    }

    def strike() -> None:
        while not over.wait(draw.uniform(0.5 * every, 1.5 * every)):
            if may_strike():
                name = draw.choice(list(faults))
                faults[name]()
                struck[name] += 1

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield struck
    finally:
        over.set()
        thread.join()


def run_servers(arguments: Namespace) -> int:
    """Until there are enough cycles and faults, an hour at most."""
    made = STORES[arguments.store]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            made.server(folder / "server") as server,
            FaultProxy("127.0.0.1", server.port) as proxy,
        ):
            url = made.url(server, proxy, folder)
            storm = threading.Event()

            def watch(progress: TortureProgress) -> None:
                if progress.doing == "faults":
                    storm.set()
                else:  # in the calm all must be served, and a server that is away cannot be tidied up
                    storm.clear()
                faults = progress.kills + progress.pauses + struck.total()
                if progress.doing == "faults" and (
                    progress.cycles >= arguments.cycles and faults >= arguments.faults
                ):
                    torture.stop()

            plan = TorturePlan(
                seconds=arguments.seconds,
                processes=arguments.workers,
                tasks=arguments.tasks,
                ttl=1.0,
                seed=arguments.seed,
            )
            torture = Torture(url, plan, progress=watch)
            begun = time.monotonic()
            with striking(server, proxy, arguments.every, arguments.seed, storm.is_set) as struck:
                verdict = torture.run()
    print(verdict)
    told = ", ".join(f"{name} {count}" for name, count in struck.most_common())
    print(f"the server, in {time.monotonic() - begun:.0f} s: {told}")
    return 0 if verdict.outcome == "clean" else 1
