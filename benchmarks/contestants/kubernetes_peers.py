"""grelmicro's locks on Kubernetes, and the bare requests beneath."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from benchmarks.contestants.kinds import Async, AsyncRun, Contestant, cycles
from benchmarks.contestants.web import connect
from benchmarks.place import Place

NOTE = "x" * 400
"""About what a lock of ours is in an annotation."""

type Put = Callable[[], Awaitable[None]]


def namespace(place: Place) -> str:
    """Each contestant has its own."""
    return urlsplit(place.server_url).netloc


def api_server(place: Place) -> Callable[[str], Put]:
    """Make, for a name, what puts a Lease if it still has the version of the put before."""
    config: Any = msgspec.json.decode(Path(place.file("kubeconfig")).read_bytes())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]

    @cache
    def tls() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=cluster["certificate-authority"])

    is_https = cluster["server"].startswith("https:")
    client = connect(cluster["server"], tls if is_https else None)
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace(place)}/leases/"
    header = f"authorization: Bearer {user['token']}\r\n".encode()

    def on(name: str) -> Put:
        metadata = {"name": name, "annotations": {"note": NOTE}}
        spec = {"holderIdentity": "bare", "leaseDurationSeconds": 30}
        lease: dict[str, object] = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        lease |= {"metadata": metadata, "spec": spec}
        at = (path + name).encode()

        async def put() -> None:
            answer = await client.request(b"PUT", at, header, msgspec.json.encode(lease))
            if answer.status not in (200, 201):
                raise RuntimeError(f"nothing was written: {answer}")
            found = msgspec.json.decode(answer.body)
            metadata["resourceVersion"] = found["metadata"]["resourceVersion"]

        return put

    return on


@asynccontextmanager
async def _bare(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    """Two PUTs of a Lease, each task on a connection that is kept."""
    put_of = api_server(place)

    def on(key: str) -> AsyncRun:
        put = put_of(key)

        async def run(n: int) -> None:
            for _ in range(n):
                await put()
                await put()

        return run

    yield on


@asynccontextmanager
async def grelmicro_backend(place: Place) -> AsyncIterator[Any]:
    from grelmicro.coordination.kubernetes import KubernetesLockAdapter

    kubeconfig = place.file("kubeconfig")
    async with KubernetesLockAdapter(namespace(place), kubeconfig=kubeconfig) as backend:
        yield backend


@asynccontextmanager
async def _grelmicro(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    from grelmicro.coordination import Lock

    async with grelmicro_backend(place) as backend:
        yield lambda key: cycles(Lock(key, backend=backend))


CYCLES: dict[str, Contestant] = {
    "bare PUT pair": Async(_bare),
    "grelmicro kubernetes": Async(_grelmicro),
}
