"""Stores by name: settings name them, primitives take the name for a client."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import LeaseLost, LockConfig, MissingCapability, NotConfigured, TaskLockConfig
from dibs.testing import steal
from tests.config.conftest import Write
from tests.runtime.scripts import run_script


@pytest.fixture
def url() -> str:
    return f"memory://{uuid4()}"


@pytest.fixture(params=[dibs, dibs.sync], ids=["async", "sync"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def reports(url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of the store that is named so."""
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", url)
    return dibs.sync.Client.named("reports")


@pytest.mark.usefixtures("reports")
async def test_both_sides_see_the_same_store(url: str) -> None:
    async with dibs.Lock("a", client="reports") as lease:
        there = await asyncio.to_thread(dibs.sync.Lock("a", client="reports").status)
        assert there.holders[0].token == lease.token
        assert there.mine
        async with dibs.Client.named("reports") as same:
            assert same.url == url
            assert (await same.status("a")).last_token == lease.token
        assert not lease.lost, "closing that client leaves the store open"
    demanding = dibs.Lock("a", client="reports", require="durable")
    with pytest.raises(MissingCapability, match="can't promise durable"):
        await demanding.acquire()


def test_every_primitive_takes_a_name(reports: Any) -> None:
    sync = dibs.sync
    store: Any = {"client": "reports"}

    @sync.Lock.wraps("wrapped", **store)
    def wrapped() -> int:
        return sync.current_lease().token

    @sync.TaskLock.wraps("started", min_hold=0, max_hold=60, **store)
    def started() -> int:
        return sync.current_lease().token

    made: list[Any] = [
        sync.Lock("a", **store),
        sync.Lock.from_config("b", LockConfig(), **store),
        sync.Semaphore("c", 2, **store),
        sync.Semaphore.from_config("d", 2, LockConfig(), **store),
        sync.RWLock("e", **store).read(),
        sync.RWLock.from_config("f", LockConfig(), **store).write(),
        sync.TaskLock("g", 0, 60, **store),
        sync.TaskLock.from_config("h", TaskLockConfig(min_hold=0, max_hold=60), **store),
        sync.LeaderElection("i", **store),
    ]
    for primitive in made:
        with primitive:
            assert reports.status(primitive.name, primitive.kind).holders, primitive
    assert wrapped() == reports.status("wrapped").last_token
    assert started() == reports.status("started", "tasklock").last_token


def test_helpers_and_allof_find_a_named_store(reports: Any) -> None:
    sync = dibs.sync
    one, two = sync.Lock("a", client="reports"), sync.Lock("b", client="reports")
    with sync.AllOf(one, two, reports.lock("c")) as leases:
        assert all(reports.lock(name).locked() for name in "abc")
    lease = one.acquire()
    assert steal(one) > lease.token > leases.tokens[0]
    with pytest.raises(LeaseLost):
        lease.ensure()


# -- named by settings ----------------------------------------------------------------------------------


def test_settings_name_stores_that_connect_by_themselves(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sync = dibs.sync
    lock = sync.Lock("a", client="reports")
    write(f'[stores.reports]\nurl = "sqlite:///{tmp_path}/reports.db"\ncall_timeout = "3s"')
    with lock:
        assert sync.Client.named("reports").lock("a").locked()
    assert (tmp_path / "reports.db").exists()
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", f"sqlite:///{tmp_path}/other.db")
    monkeypatch.setenv("DIBS_STORES__REPORTS__CONNECT_TIMEOUT", "4s")
    with lock:
        for name, locked in ("reports", False), ("other", True):
            with sync.connect(f"sqlite:///{tmp_path}/{name}.db") as client:
                assert client.lock("a").locked() is locked
    runtime = sync.Client.named("reports").session.thread_runtime()
    assert (runtime.connect_timeout, runtime.call_timeout) == (4, 3)


def test_a_wrong_url_in_settings_names_its_place(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write('[stores.reports]\nurl = "mongodb://h"')
    with pytest.raises(NotConfigured, match=re.escape(f"{path}: [stores.reports] url: 'mongodb")):
        dibs.sync.Lock("a", client="reports").acquire()
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", "mongodb://h")
    with pytest.raises(
        NotConfigured, match=r"^DIBS_STORES__REPORTS__URL: 'mongodb://h' is not the URL of a store"
    ):
        dibs.sync.Lock("a", client="reports").acquire()


@pytest.mark.multiprocess
def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    lines = run_script(
        """
        import os, sys
        from dibs.sync import Lock
        os.environ["DIBS_STORES__REPORTS__URL"] = sys.argv[1]
        lock = Lock("a", client="reports")
        lease = lock.acquire()
        if os.fork() == 0:
            print(lock.try_acquire(), flush=True)
            os._exit(0)
        os.wait()
        print(lease.release())
        """,
        f"sqlite:///{tmp_path}/leases.db",
    )
    assert lines == ["None", "True"]


# -- errors ---------------------------------------------------------------------------------------------


async def test_an_unknown_name_is_an_error_that_lists_the_known_ones(
    write: Write, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    lock = dibs.Lock("a", client="reports", require={"process"})
    how = (
        "Name one with DIBS_STORES__REPORTS__URL, or with [stores.reports] url in the file that "
        "DIBS_CONFIG names"
    )
    with pytest.raises(NotConfigured) as error:
        await lock.acquire()
    assert str(error.value) == f"no store is named 'reports' here: no store has a name yet. {how}"
    write('[stores.audit]\nurl = "memory://audit"')
    monkeypatch.setenv("DIBS_STORES__MY_OWN__URL", "memory://own")
    with pytest.raises(NotConfigured) as error:
        await lock.acquire()
    known = "there are 'audit', 'my_own'"
    assert str(error.value) == f"no store is named 'reports' here: {known}. {how}"
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", url)
    async with lock:
        assert await dibs.connect(url).lock("a").locked()


NOT_NAMES: list[tuple[Any, type[Exception], str]] = [
    ("redis://me:secret@h", ValueError, r"'redis://me:\*\*\*@h' is a URL, and no name of a store"),
    ("default", ValueError, "'default' is not a store name. Primitives without client= use the"),
    ("Reports", ValueError, "a store's name is 'Reports': write it with a to z"),
    ("", ValueError, "a store's name is '': write it with a to z"),
    (3, TypeError, "give what connect.. returned, or the name|a store's name is .*: give a text"),
    (b"reports", TypeError, "client= is of builtins.bytes: give what|name is .*: give a text"),
]


@pytest.mark.parametrize(("name", "kind", "told"), NOT_NAMES)
def test_what_is_no_name_is_refused(
    module: Any, url: str, name: Any, kind: type[Exception], told: str
) -> None:
    makers: list[Callable[[], Any]] = [
        lambda: module.Lock("a", client=name),
        lambda: module.RWLock("a", client=name),
        lambda: module.Lock.wraps("a", client=name)(lambda: None),
        lambda: module.Client.named(name),
        lambda: module.override(dibs.connect(url), name=name),
    ]
    for make in makers:
        with pytest.raises(kind, match=told):
            make()
