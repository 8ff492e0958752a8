"""The torture on a store whose server is killed, paused and cut off: `python -m tests.torture servers`."""

import os
import random
import tempfile
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dibs.testing import FaultProxy, Torture, TorturePlan, TortureProgress
from tests.servers.etcd import EtcdServer
from tests.servers.kube import KubeServer
from tests.servers.nats import NatsServer
from tests.servers.s3 import S3Server
from tests.servers.server import Server
from tests.stores.kubernetes.configs import kubeconfig

PAUSE = 1.5
"""Seconds for which the server stands still, or loses what it answers."""


class Made(NamedTuple):
    """How a store's server is made."""

    server: Callable[[Path], Server]
    url: Callable[[Server, FaultProxy, Path], str]
    """The store's URL through the proxy; a folder for files that it needs."""


def _etcd(folder: Path) -> Server:
    """An etcd takes no writes once it has 2 GB of old revisions; it is killed too often to delete them."""
    return EtcdServer(folder, extra=("--quota-backend-bytes=20000000000",))


def _kubernetes(server: Server, proxy: FaultProxy, folder: Path) -> str:
    config = kubeconfig(folder / "kubeconfig", f"http://127.0.0.1:{proxy.port}")
    return f"kubernetes://default?kubeconfig={config}"


def _s3(server: Server, proxy: FaultProxy, folder: Path) -> str:
    """Workers inherit the credentials."""
    assert isinstance(server, S3Server)
    os.environ["AWS_ACCESS_KEY_ID"] = server.access_key
    os.environ["AWS_SECRET_ACCESS_KEY"] = server.secret_key
    return f"s3://{server.bucket}?endpoint=http://127.0.0.1:{proxy.port}"


STORES: dict[str, Made] = {
    "etcd": Made(_etcd, lambda server, proxy, folder: f"etcd://127.0.0.1:{proxy.port}"),
    "kubernetes": Made(KubeServer, _kubernetes),
    "nats": Made(NatsServer, lambda server, proxy, folder: f"nats://127.0.0.1:{proxy.port}"),
    "s3": Made(S3Server, _s3),
}


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
