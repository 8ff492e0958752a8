"""The torture of real processes, on a store whose server is killed, paused and cut off, if it has one."""

import os
import random
import tempfile
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dibs.testing import FaultProxy, Torture, TorturePlan, TortureProgress, Verdict
from tests.servers.etcd import EtcdServer
from tests.servers.etcd_cluster import EtcdCluster
from tests.servers.kube import KubeServer
from tests.servers.nats import NatsServer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.s3 import S3Server
from tests.servers.server import Server
from tests.stores.kubernetes.configs import kubeconfig

EVERY = 20.0
"""Seconds between two faults of the server, on average."""
PAUSE = 1.5
"""Seconds for which the server stands still, or loses what it answers."""

type Fault = tuple[Callable[[], object], Callable[[], object]]
"""What begins it, and what ends it."""

FAULTS = ("killed", "paused", "connections cut", "answers lost", "network hung", "answers cut off")
"""Of each server, in this order."""

SERVERS: dict[str, Callable[[Path], Server]] = {
    # with `everysec` it answers before it writes while its disk is slow
    "redis": partial(RedisServer, persistence="always"),
    "postgres": PostgresServer,
    # it takes no writes once it has 2 GB of old revisions, and is killed too often to delete them
    "etcd": partial(EtcdServer, extra=("--quota-backend-bytes=20000000000",)),
    "kubernetes": KubeServer,
    "nats": NatsServer,
    "s3": S3Server,
}
STORES = ("sqlite", "etcd cluster", *SERVERS)


@contextmanager
def running(store: str, folder: Path) -> Iterator[tuple[str, Mapping[str, Fault]]]:
    """A store that keeps leases through crashes of its server: its URL, and what may happen to it."""
    if store == "sqlite":
        yield f"sqlite:///{folder / 'leases.db'}", {}
    elif store == "etcd cluster":
        with EtcdCluster(folder) as cluster:
            hosts = ",".join(f"127.0.0.1:{member.port}" for member in cluster.members)
            yield (
                f"etcd://{hosts}",
                {"leader killed": (partial(_replace_leader, cluster), _nothing)},
            )
    else:
        with (
            SERVERS[store](folder / "server") as server,
            FaultProxy("127.0.0.1", server.port) as proxy,
        ):
            of_all: Sequence[Fault] = (
                (server.kill, server.start),
                (server.pause, server.resume),
                (proxy.cut, _nothing),
                (proxy.drop_replies, proxy.heal),
                (proxy.hang, proxy.heal),
                (partial(proxy.reset_after, 200, "to_client"), proxy.heal),
            )
            faults = dict(zip(FAULTS, of_all, strict=True))
            if isinstance(server, PostgresServer):
                faults["sessions ended"] = partial(_end_sessions, server), _nothing
            yield _url(store, server, proxy, folder), faults


def _url(store: str, server: Server, proxy: FaultProxy, folder: Path) -> str:
    """The store's URL by the proxy. Workers inherit the credentials."""
    address = f"127.0.0.1:{proxy.port}"
    match server:
        case PostgresServer():
            return proxy.url_for(server.new_database())
        case KubeServer():
            config = kubeconfig(folder / "kubeconfig", f"http://{address}")
            return f"kubernetes://default?kubeconfig={config}"
        case S3Server():
            os.environ["AWS_ACCESS_KEY_ID"] = server.access_key
            os.environ["AWS_SECRET_ACCESS_KEY"] = server.secret_key
            return f"s3://{server.bucket}?endpoint=http://{address}"
    return f"{store}://{address}"


def _nothing() -> None: ...


def _replace_leader(cluster: EtcdCluster) -> None:
    leader = cluster.leader()
    leader.kill()
    cluster.leader()
    leader.start()


def _end_sessions(server: PostgresServer) -> None:
    with server.connect() as plain:
        plain.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dibs'"
        )


def torture(
    url: str,
    plan: TorturePlan,
    faults: Mapping[str, Fault],
    times: Iterable[tuple[float, str, float]],
    is_enough: Callable[[TortureProgress, Counter[str]], bool],
) -> tuple[Verdict, Counter[str]]:
    """Torture processes, and meanwhile their server; also say how often each of its faults happened.

    `times` are seconds to wait, the name of a fault, and how many seconds it lasts. Faults happen only while
    processes are killed and paused: in the calm all must be served, and an absent server can't be tidied up.
    """
    storm, over, happened = threading.Event(), threading.Event(), Counter[str]()

    def watch(progress: TortureProgress) -> None:
        if progress.doing != "faults":
            storm.clear()
            return
        storm.set()
        if not over.is_set() and is_enough(progress, happened):
            over.set()
            trial.stop()

    def strike() -> None:
        for pause, name, seconds in times:
            over.wait(pause)
            while not storm.wait(0.1) and not over.is_set():
                pass
            if over.is_set():
                return
            begin, end = faults[name]
            begin()
            over.wait(seconds)
            end()
            happened[name] += 1

    trial = Torture(url, plan, progress=watch)
    with ThreadPoolExecutor(1) as thread:
        striker = thread.submit(strike)
        try:
            verdict = trial.run()
        finally:
            over.set()
        striker.result()
    return verdict, happened


def run_processes(arguments: Namespace) -> int:
    """Until there are enough cycles and faults, an hour at most."""

    def is_enough(progress: TortureProgress, happened: Counter[str]) -> bool:
        struck = progress.kills + progress.pauses + happened.total()
        return bool(progress.cycles >= arguments.cycles and struck >= arguments.faults)

    def at_random(names: Sequence[str]) -> Generator[tuple[float, str, float]]:
        draw = random.Random(arguments.seed)
        while names:
            pause = draw.uniform(0.5 * EVERY, 1.5 * EVERY)
            yield pause, draw.choice(names), draw.uniform(0.1, PAUSE)

    plan = TorturePlan(seconds=3600, processes=6, tasks=4, ttl=1.0, seed=arguments.seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(arguments.store, Path(folder)) as (url, faults),
    ):
        begun = time.monotonic()
        verdict, happened = torture(url, plan, faults, at_random([*faults]), is_enough)
    print(verdict)
    told = ", ".join(f"{name} {count}" for name, count in happened.most_common())
    print(f"the server, in {time.monotonic() - begun:.0f} s: {told or 'none'}")
    return 0 if verdict.outcome == "clean" else 1
