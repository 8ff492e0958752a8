"""Stores by name: settings name them, primitives take the name for a client."""

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import LockConfig, MissingCapability, NotConfigured, TaskLockConfig
from dibs.testing import steal
from tests.config.conftest import Write
from tests.runtime.scripts import run_script


@pytest.fixture
def url() -> str:
    return f"memory://{uuid4()}"


@pytest.fixture(params=[dibs, dibs.sync], ids=["async", "sync"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


def url_of(lock: Any) -> str:
    return str(lock._client.session.url)


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


def test_a_primitive_may_be_made_before_its_store_is_named(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = dibs.sync.Lock("a", client="reports", require={"process"})
    with pytest.raises(NotConfigured, match="no store is named 'reports' here"):
        lock.acquire()
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", url)
    with lock:
        assert url_of(lock) == url


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


async def test_a_wrapped_coroutine_function_takes_a_name(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dibs.Lock.wraps("wrapped", client="reports")
    async def wrapped() -> int:
        return dibs.current_lease().token

    with pytest.raises(NotConfigured):
        await wrapped()
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", url)
    assert await wrapped() == (await dibs.Lock("wrapped", client="reports").status()).last_token


@pytest.mark.usefixtures("reports")
def test_the_test_helpers_find_a_named_store() -> None:
    lock = dibs.sync.Lock("a", client="reports")
    lease = lock.acquire()
    assert steal(lock) > lease.token
    with pytest.raises(dibs.LeaseLost):
        lease.ensure()


@pytest.mark.usefixtures("reports")
def test_one_lock_in_several_loops_and_threads() -> None:
    lock, blocking = (module.Lock("a", client="reports") for module in (dibs, dibs.sync))
    tokens: list[int] = []

    async def cycles() -> None:
        for _ in range(5):
            async with lock as lease:
                tokens.append(lease.token)

    def cycles_of_a_thread() -> None:
        for _ in range(5):
            with blocking as lease:
                tokens.append(lease.token)

    targets = [lambda: asyncio.run(cycles()), cycles_of_a_thread] * 3
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(tokens)) == 30
    assert tokens == sorted(tokens)


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


def test_a_timeout_that_changes_is_followed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", url)
    first = dibs.sync.Client.named("reports").session
    monkeypatch.setenv("DIBS_STORES__REPORTS__CALL_TIMEOUT", "3s")
    second = dibs.sync.Client.named("reports").session
    assert (first.thread_runtime().call_timeout, second.thread_runtime().call_timeout) == (10, 3)


def test_a_wrong_url_in_settings_tells_where_it_stands(
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


# -- what is told ---------------------------------------------------------------------------------------


async def test_an_unknown_name_is_told_with_the_known_ones(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = dibs.Lock("a", client="reports")
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


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("redis://me:secret@h", r"'redis://me:\*\*\*@h' is a URL, and no name of a store"),
        (
            "default",
            "'default' is not a store name. Primitives without client= use the default store",
        ),
        ("Reports", "a store's name is 'Reports': write it with a to z"),
        ("", "a store's name is '': write it with a to z"),
    ],
)
def test_what_is_no_name_is_told(module: Any, url: str, name: str, told: str) -> None:
    makers: list[Callable[[], Any]] = [
        lambda: module.Lock("a", client=name),
        lambda: module.RWLock("a", client=name),
        lambda: module.Lock.wraps("a", client=name)(lambda: None),
        lambda: module.Client.named(name),
        lambda: module.override(dibs.connect(url), name=name),
    ]
    for make in makers:
        with pytest.raises(ValueError, match=told):
            make()


@pytest.mark.parametrize("wrong", [3, b"reports", object()])
def test_what_is_neither_client_nor_name_is_told(module: Any, wrong: Any) -> None:
    told = "give what connect.. returned, or the name of a store"
    with pytest.raises(TypeError, match=told):
        module.Lock("a", client=wrong)
    with pytest.raises(TypeError, match=told):
        module.Lock.wraps("a", client=wrong)(lambda: None)
    with pytest.raises(TypeError, match=r"a store's name is .*: give a text"):
        module.Client.named(wrong)


@pytest.mark.usefixtures("reports")
def test_what_a_named_store_can_not_promise_is_told_when_it_is_used() -> None:
    lock = dibs.sync.Lock("a", client="reports", require="durable")
    with pytest.raises(MissingCapability, match="can't promise durable"):
        lock.acquire()


def test_all_of_several_go_to_the_named_store(reports: Any) -> None:
    sync = dibs.sync
    one, two = sync.Lock("a", client="reports"), sync.Lock("b", client="reports")
    with sync.AllOf(one, two):
        assert reports.lock("a").locked()
        assert reports.lock("b").locked()
        with sync.AllOf(reports.lock("c"), sync.Lock("d", client="reports")):
            assert two.locked()
