"""Stores of compare-and-set: what others write into them or delete there, and cells that are full."""

import asyncio
import base64
from collections.abc import Callable
from typing import Any, NamedTuple

import boto3  # type: ignore[import-untyped]
import nats
import pytest

from dibs.errors import Corrupt, IncompatibleVersion
from dibs.model import Acquire, Granted, Refused, Release, Released, Renew, Renewed
from dibs.stores.registry import store_for
from dibs.sync import connect
from tests.stores.kubernetes.configs import Cluster


class Store(NamedTuple):
    """A store, and the ways of others to the cell of its lock `a`."""

    url: str
    put: Callable[[bytes], object]
    delete: Callable[[], object]


@pytest.fixture(params=["etcd", "kubernetes", "nats", "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    make: Callable[[pytest.FixtureRequest], Store] = {
        "etcd": etcd,
        "kubernetes": kubernetes,
        "nats": nats_store,
        "s3": s3,
    }[request.param]
    return make(request)


def etcd(request: pytest.FixtureRequest) -> Store:
    url, server = request.getfixturevalue("etcd_url"), request.getfixturevalue("etcd_server")
    key = base64.b64encode(f"{url.rpartition('/')[2]}/keys/lock:a".encode()).decode()
    return Store(
        url,
        lambda value: server.call(
            "kv/put", {"key": key, "value": base64.b64encode(value).decode()}
        ),
        lambda: server.call("kv/deleterange", {"key": key}),
    )


def kubernetes(request: pytest.FixtureRequest) -> Store:
    cluster: Cluster = request.getfixturevalue("cluster")

    def put(value: bytes) -> None:
        found = cluster.lease("dibs-lock.a")
        found["metadata"]["annotations"]["dibs/book"] = value.decode()
        cluster.put(found)

    return Store(
        cluster.url, put, lambda: cluster.server.request("DELETE", f"{cluster.leases}/dibs-lock.a")
    )


def nats_store(request: pytest.FixtureRequest) -> Store:
    url, server = request.getfixturevalue("nats_url"), request.getfixturevalue("nats_server")

    async def do(action: Callable[[Any], Any]) -> None:
        client = await nats.connect(server.url)
        await action(await client.jetstream().key_value(url.partition("bucket=")[2]))
        await client.close()

    return Store(
        url,
        lambda value: asyncio.run(do(lambda bucket: bucket.put("lock=3Aa", value))),
        lambda: asyncio.run(do(lambda bucket: bucket.delete("lock=3Aa"))),
    )


def s3(request: pytest.FixtureRequest) -> Store:
    url, server = request.getfixturevalue("s3_url"), request.getfixturevalue("s3_server")
    place = {
        "Bucket": server.bucket,
        "Key": f"{url.partition('?')[0].rpartition('/')[2]}/keys/lock:a",
    }
    session = boto3.session.Session()  # which looks at the environment now
    client = session.client("s3", endpoint_url=server.url, region_name="us-east-1")
    request.addfinalizer(client.close)
    return Store(
        url,
        lambda value: client.put_object(**place, Body=value),
        lambda: client.delete_object(**place),
    )


@pytest.mark.parametrize(
    ("value", "error"), [(b"nonsense", Corrupt), (b'{"format": 99}', IncompatibleVersion)]
)
def test_what_is_no_book_grants_nothing(store: Store, value: bytes, error: type[Exception]) -> None:
    with connect(store.url) as client:
        client.lock("a").acquire(wait=10).release()
        store.put(value)
        with pytest.raises(error, match=r"lock.*a"):
            client.lock("a").acquire(wait=0)
        with client.lock("b"):
            assert [each.name for each in client.list()] == [b"b"], "other keys are well"
        store.delete()
        client.lock("a").acquire(wait=10).release()


def test_a_lease_whose_key_somebody_deletes_is_lost(store: Store) -> None:
    """The key begins with the date again: only leases of the last seconds can have a higher token."""
    with connect(store.url) as client:
        lease = client.lock("a", ttl=1).acquire(wait=10)
        store.delete()
        assert lease.wait_lost(5)
        with client.lock("a", wait=10) as second:
            assert abs(second.token - lease.token) < 30_000_000


@pytest.mark.parametrize("store", ["etcd", "kubernetes"], indirect=True)
def test_a_key_that_is_full_takes_no_more_and_serves_who_is_in_it(store: Store) -> None:
    connection = store_for(store.url).blocking_connection()
    connection.open(5)
    note = "x" * 60_000
    replies = [
        connection.apply(
            [Acquire(b"semaphore:a", f"{n:032x}", "o", 30, capacity=100, note=note)], 10
        )[0]
        for n in range(20)
    ]
    held = [n for n, reply in enumerate(replies) if isinstance(reply, Granted)]
    assert 2 <= len(held) < 18
    assert {reply.reason for reply in replies if isinstance(reply, Refused)} == {"queue_full"}
    renewals = [Renew(b"semaphore:a", f"{n:032x}", 60) for n in held]
    assert [*connection.apply(renewals, 10)] == [Renewed(60)] * len(held)
    released = connection.apply([Release(b"semaphore:a", f"{held[0]:032x}")], 10)
    assert released == [Released()]
    connection.close()
