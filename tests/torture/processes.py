"""The torture of real processes, on a store whose server is killed, paused and cut off, if it has one."""

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

from dibs.testing import FaultProxy, Torture, TorturePlan, TortureProgress
from tests.servers.etcd import EtcdServer
from tests.servers.kube import KubeServer
from tests.servers.nats import NatsServer
from tests.servers.s3 import S3Server
from tests.servers.server import Server
from tests.stores.kubernetes.configs import kubeconfig

EVERY = 20.0
"""Seconds between two faults of the server, on average."""
PAUSE = 1.5
"""Seconds for which the server stands still, or loses what it answers."""

type Strike = Callable[[], object]


def _etcd(folder: Path) -> Server:
    """An etcd takes no writes once it has 2 GB of old revisions; it is killed too often to delete them."""
    return EtcdServer(folder, extra=("--quota-backend-bytes=20000000000",))


def _url(store: str, server: Server, address: str, folder: Path) -> str:
    """The store's URL by that address. Workers inherit the credentials."""
    if store == "kubernetes":
        config = kubeconfig(folder / "kubeconfig", f"http://{address}")
        return f"kubernetes://default?kubeconfig={config}"
    if isinstance(server, S3Server):
        os.environ["AWS_ACCESS_KEY_ID"] = server.access_key
        os.environ["AWS_SECRET_ACCESS_KEY"] = server.secret_key
        return f"s3://{server.bucket}?endpoint=http://{address}"
    return f"{store}://{address}"


SERVERS: dict[str, Callable[[Path], Server]] = {
    "etcd": _etcd,
    "kubernetes": KubeServer,
    "nats": NatsServer,
    "s3": S3Server,
}
STORES = ("sqlite", *SERVERS)


@contextmanager
def striking(
    server: Server, proxy: FaultProxy, seed: int, storm: threading.Event
) -> Iterator[Counter[str]]:
    """Let something happen to the server now and then, in the storm; yields what happened how often."""
    draw, over, struck = random.Random(seed), threading.Event(), Counter[str]()

    def for_a_while(begin: Strike, end: Strike) -> None:
        begin()
        over.wait(draw.uniform(0.1, PAUSE))
        end()

    faults: dict[str, Strike] = {
        "killed and started again": lambda: for_a_while(server.kill, server.start),
        "paused": lambda: for_a_while(server.pause, server.resume),
        "connections cut": proxy.cut,
        "answers lost": lambda: for_a_while(proxy.drop_replies, proxy.heal),
        "network hung": lambda: for_a_while(proxy.hang, proxy.heal),
    }

    def strike() -> None:
        while not over.wait(draw.uniform(0.5 * EVERY, 1.5 * EVERY)):
            if storm.is_set():
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


def run_processes(arguments: Namespace) -> int:
    """Until there are enough cycles and faults, an hour at most."""
    with tempfile.TemporaryDirectory() as name:
        folder, make = Path(name), SERVERS.get(arguments.store)
        if make is None:
            return _run(
                arguments, f"sqlite:///{folder / 'leases.db'}", threading.Event(), Counter()
            )
        with (
            make(folder / "server") as server,
            FaultProxy("127.0.0.1", server.port) as proxy,
        ):
            url, storm = (
                _url(arguments.store, server, f"127.0.0.1:{proxy.port}", folder),
                threading.Event(),
            )
            with striking(server, proxy, arguments.seed, storm) as struck:
                return _run(arguments, url, storm, struck)


def _run(arguments: Namespace, url: str, storm: threading.Event, struck: Counter[str]) -> int:
    def watch(progress: TortureProgress) -> None:
        if progress.doing != "faults":
            storm.clear()  # in the calm all must be served, and an absent server cannot be tidied up
            return
        storm.set()
        faults = progress.kills + progress.pauses + struck.total()
        if progress.cycles >= arguments.cycles and faults >= arguments.faults:
            torture.stop()

    plan = TorturePlan(seconds=3600, processes=6, tasks=4, ttl=1.0, seed=arguments.seed)
    torture, begun = Torture(url, plan, progress=watch), time.monotonic()
    verdict = torture.run()
    print(verdict)
    told = ", ".join(f"{name} {count}" for name, count in struck.most_common())
    print(f"the server, in {time.monotonic() - begun:.0f} s: {told or 'none'}")
    return 0 if verdict.outcome == "clean" else 1
