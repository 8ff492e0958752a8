"""What `etcdctl` does to our keys: no two holders, and an operator learns what is wrong and what to do."""

import json
import os
import subprocess
import sys
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from dibs.errors import AcquireTimeout, BackendUnavailable, Corrupt, LeaseLost
from dibs.sync import connect
from tests.servers.binaries import etcdctl_program
from tests.servers.etcd import EtcdServer
from tests.servers.waiting import wait_until
from tests.stores.cas_processes import contend
from tests.stores.etcd.test_etcd import watchers


@pytest.fixture(autouse=True, scope="module")
def _etcdctl() -> None:
    etcdctl_program()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd of this test: its upkeep would slow others down."""
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


def keys_of(url: str) -> str:
    """What the keys of locks begin with."""
    return f"{url.rpartition('/')[2]}/keys/lock:"


def compact(server: EtcdServer) -> None:
    header = json.loads(server.ctl("get", "any", "--write-out", "json"))["header"]
    server.ctl("compact", str(header["revision"]))


def grant(server: EtcdServer) -> str:
    """An etcd lease, which ends with what is attached to it."""
    return server.ctl("lease", "grant", "600").split()[1]


def attach(server: EtcdServer, key: str) -> str:
    """Attach a key to an etcd lease, and return that."""
    lease = grant(server)
    value = server.ctl("get", "--print-value-only", key).strip()
    server.ctl("put", key, value, "--lease", lease)
    return lease


@pytest.mark.once
@pytest.mark.multiprocess
def test_upkeep_leaves_one_holder_at_a_time(own_server: EtcdServer, tmp_path: Path) -> None:
    url = f"etcd://127.0.0.1:{own_server.port}/dibs"
    key = "dibs/keys/lock:contended"
    doings: dict[str, Callable[[], object]] = {
        "get": lambda: own_server.ctl("get", "--prefix", "dibs/"),
        "compact": lambda: compact(own_server),
        "defrag": lambda: own_server.ctl("defrag"),
        "snapshot": lambda: own_server.ctl("snapshot", "save", str(tmp_path / "snapshot.db")),
        "revoke": lambda: own_server.ctl("lease", "revoke", grant(own_server)),
        "lock": lambda: own_server.ctl("lock", key, "true"),
    }
    done: Counter[str] = Counter()
    with ThreadPoolExecutor(1) as thread:
        cycles = thread.submit(contend, url, tmp_path, seconds=5, processes=3)
        for name, do in cycle(doings.items()):
            if cycles.done():
                break
            do()
            done[name] += 1
        assert all(count > 0 for count in cycles.result())
    assert min(done[name] for name in doings) >= 2, done


def test_who_waits_is_served_after_a_compaction(own_server: EtcdServer) -> None:
    url = f"etcd://127.0.0.1:{own_server.port}"
    with connect(url) as holder, connect(url) as waiter:
        lease = holder.lock("a", ttl=60).acquire()
        got = threading.Event()

        def wait() -> None:
            with waiter.lock("a", ttl=60):
                got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: watchers(own_server), "somebody waits")
        for _ in range(3):
            lease.renew()
            compact(own_server)
        own_server.ctl("defrag")
        wait_until(lambda: watchers(own_server) == 1, "the watch is there again, once")
        assert not got.is_set()
        lease.release()
        assert got.wait(5)
        thread.join()


@pytest.mark.once
def test_doctor_tells_that_no_old_revision_is_deleted(own_server: EtcdServer) -> None:
    """Else etcd would one day take no writes any more: not even renewals."""
    url = f"etcd://127.0.0.1:{own_server.port}"
    assert "history" not in findings(url)
    for _ in range(1001):
        own_server.call("kv/put", {"key": "YQ==", "value": "YQ=="})
    assert findings(url)["history"]["level"] == "warning"
    compact(own_server)
    assert findings(url)["history"]["level"] == "ok"


@pytest.mark.once
def test_a_full_etcd_is_told_with_what_helps(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd", extra=("--quota-backend-bytes=1000000",)) as server:
        own = f"etcd://127.0.0.1:{server.port}"
        value = b64encode(bytes(100_000)).decode()
        with suppress(HTTPError):
            for _ in range(20):
                server.call("kv/put", {"key": "YQ==", "value": value})
        with connect(own) as client, pytest.raises(BackendUnavailable, match="auto-compaction"):
            client.lock("a").acquire(wait=0)


def findings(url: str) -> dict[str, Any]:
    """What `dibs doctor` reports, by its subjects."""
    done = subprocess.run(
        [sys.executable, "-m", "dibs", "doctor", "--json"],
        env=os.environ | {"DIBS_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    return {each["about"]: each for each in map(json.loads, done.stdout.splitlines())}


def test_get_shows_who_holds(etcd_url: str, etcd_server: EtcdServer) -> None:
    with connect(etcd_url) as client, client.lock("a", note="by hand") as lease:
        text = etcd_server.ctl("get", "--print-value-only", f"{keys_of(etcd_url)}a")
        (entry,) = json.loads(text)["entries"]
        shown = entry["is"], entry["owner"], entry["token"], entry["note"]
        assert shown == ("hold", lease.owner, lease.token, "by hand")


def test_garbage_over_a_held_key_lets_nobody_in_until_it_is_deleted(
    etcd_url: str, etcd_server: EtcdServer
) -> None:
    key = f"{keys_of(etcd_url)}a"
    with connect(etcd_url) as client, connect(etcd_url) as other:
        lease = client.lock("a", ttl=3).acquire()
        etcd_server.ctl("put", key, "nonsense")
        for ask in (
            lambda: other.lock("a").acquire(wait=0),
            lambda: other.lock("a").acquire(wait=5),
            lambda: other.lock("a").status(),
            lease.renew,
        ):
            with pytest.raises(
                Corrupt, match=r"/keys/lock:a .* nobody holds it any more, then delete it"
            ):
                ask()
        assert lease.wait_lost(5)
        assert lease.reason == "expired"
        with pytest.raises(LeaseLost, match="nobody is granted this lock") as loss:
            lease.ensure()
        assert "another holder" not in str(loss.value)
        with pytest.raises(Corrupt):
            other.lock("a").acquire(wait=0)
        etcd_server.ctl("del", key)
        with other.lock("a") as second:
            assert second.token > lease.token
        assert not lease.release()


def test_a_key_that_ends_with_an_etcd_lease_is_a_deleted_one(
    etcd_url: str, etcd_server: EtcdServer
) -> None:
    key = f"{keys_of(etcd_url)}a"
    with connect(etcd_url) as client:
        lease = client.lock("a").acquire()
        attached = attach(etcd_server, key)
        lease.renew()  # which detaches it
        etcd_server.ctl("lease", "revoke", attached)
        lease.renew()
        assert client.lock("a").locked()
        etcd_server.ctl("lease", "revoke", attach(etcd_server, key))
        with pytest.raises(LeaseLost):
            lease.renew()


def test_a_lock_of_etcdctl_is_another_one(etcd_url: str, etcd_server: EtcdServer) -> None:
    """It puts a key below ours, which is no key of Dibs."""
    command = [str(etcdctl_program().path), "--endpoints", etcd_server.url, "lock"]
    with connect(etcd_url) as client, client.lock("a") as lease:
        with subprocess.Popen(
            [*command, f"{keys_of(etcd_url)}a"], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert f"{keys_of(etcd_url)}a/" in process.stdout.readline(), "it holds its own"
            assert [status.name for status in client.list()] == [b"a"]
            with pytest.raises(AcquireTimeout):
                client.lock("a").acquire(wait=0)
            lease.renew()
            process.terminate()
    with connect(etcd_url) as client, client.lock("a") as second:
        assert second.token > lease.token
