"""Stores by name: who has a name, for how long, and what a name that nobody has is told."""

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
    return str(lock._client.url)


# -- connected under a name ---------------------------------------------------------------------------


async def test_both_worlds_see_the_same_store(url: str) -> None:
    async with dibs.connect(url, name="reports"):
        async with dibs.Lock("a", client="reports") as lease:
            there = await asyncio.to_thread(dibs.sync.Lock("a", client="reports").status)
            assert there.holders[0].token == lease.token
            assert there.mine
        async with dibs.connect(name="reports") as same:
            assert same.url == url
            assert (await same.status("a")).last_token == lease.token


def test_a_primitive_may_be_made_before_its_store_is_connected(url: str) -> None:
    lock = dibs.sync.Lock("a", client="reports", require={"process"})
    for _ in range(2):
        with dibs.sync.connect(url, name="reports") as client, lock:
            assert client.lock("a").locked()
        with pytest.raises(NotConfigured, match="no store is named 'reports' here"):
            lock.acquire()


def test_every_primitive_takes_a_name(url: str) -> None:
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
    with sync.connect(url, name="reports") as client:
        for primitive in made:
            with primitive:
                assert client.status(primitive.name, primitive.kind).holders, primitive
        assert wrapped() == client.status("wrapped").last_token
        assert started() == client.status("started", "tasklock").last_token


async def test_a_wrapped_coroutine_function_takes_a_name(url: str) -> None:
    @dibs.Lock.wraps("wrapped", client="reports")
    async def wrapped() -> int:
        return dibs.current_lease().token

    with pytest.raises(NotConfigured):
        await wrapped()
    async with dibs.connect(url, name="reports") as client:
        assert await wrapped() == (await client.status("wrapped")).last_token


def test_the_test_helpers_find_a_named_store(url: str) -> None:
    with dibs.sync.connect(url, name="reports"):
        lock = dibs.sync.Lock("a", client="reports")
        lease = lock.acquire()
        assert steal(lock) > lease.token
        with pytest.raises(dibs.LeaseLost):
            lease.ensure()


def test_names_are_independent_of_each_other_and_of_the_default(url: str) -> None:
    sync = dibs.sync
    with (
        sync.connect(f"{url}-1", name="reports"),
        sync.connect(f"{url}-2", name="audit", default=True),
        sync.Lock("a", client="reports"),
        sync.Lock("a", client="audit"),
    ):
        assert url_of(sync.Lock("a", client="reports")) == f"{url}-1"
        assert sync.connect().url == f"{url}-2"
        assert sync.Lock("a").locked()


# -- several clients of one name ------------------------------------------------------------------------


def test_a_name_in_use_is_not_given_to_another_store(module: Any, url: str) -> None:
    with dibs.sync.connect(url, name="reports") as client:
        lease = client.lock("a").acquire()
        told = (
            f"the name 'reports' is in use here for {url}: close that client first, or give {url}-2"
        )
        with pytest.raises(ValueError, match=re.escape(told)):
            module.connect(f"{url}-2", name="reports")
        with pytest.raises(ValueError, match=r"in use here for .*, with other options"):
            module.connect(url, name="reports", call_timeout=3)
        lease.ensure()
    with dibs.sync.connect(f"{url}-2", name="reports") as other:
        assert url_of(dibs.sync.Lock("a", client="reports")) == other.url


def test_a_password_is_not_told(module: Any) -> None:
    dibs.sync.connect("redis://me:secret@h", name="reports")
    with pytest.raises(ValueError, match="in use here for") as error:
        module.connect("redis://me:other@h", name="reports")
    assert "secret" not in str(error.value)
    assert "other@" not in str(error.value)


def test_the_last_client_of_a_name_closes_its_store(url: str) -> None:
    sync = dibs.sync
    one, two = sync.connect(url, name="reports"), sync.connect(url, name="reports")
    assert one.hub is two.hub
    lease = sync.Lock("a", client="reports").acquire()
    one.close()
    one.close()  # again is not another one's turn
    assert not lease.lost
    two.close()
    assert lease.reason == "closed"
    with pytest.raises(NotConfigured):
        sync.Lock("a", client="reports").acquire()


def test_a_client_that_is_entered_again_has_its_name_again(url: str) -> None:
    sync = dibs.sync
    client = sync.connect(url, name="reports")
    lock = sync.Lock("a", client="reports")
    for _ in range(3):
        with client, lock as lease:
            assert not lease.lost
    with sync.connect(f"{url}-2", name="reports"):
        with pytest.raises(ValueError, match="in use here for"):
            client.__enter__()
    client.close()
    with sync.connect(url, name="reports") as other, client, lock:
        assert client.hub is other.hub


async def test_an_async_client_that_is_entered_again_has_its_name_again(url: str) -> None:
    client = dibs.connect(url, name="reports")
    lock = dibs.Lock("a", client="reports")
    for _ in range(3):
        async with client, lock as lease:
            assert not lease.lost


def test_one_lock_in_several_loops_and_threads(url: str) -> None:
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

    with dibs.sync.connect(url, name="reports"):
        targets = [lambda: asyncio.run(cycles()), cycles_of_a_thread] * 3
        threads = [threading.Thread(target=target) for target in targets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(tokens)) == 30
    assert tokens == sorted(tokens)


def test_many_threads_that_connect_first_share_one_store(url: str) -> None:
    clients: list[Any] = []
    barrier = threading.Barrier(8)

    def first() -> None:
        barrier.wait()
        clients.append(dibs.sync.connect(url, name="reports"))

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(client.hub) for client in clients}) == 1
    for client in clients:
        assert dibs.sync.connect(name="reports").url == url
        client.close()
    with pytest.raises(NotConfigured):
        dibs.sync.connect(name="reports")


# -- named by settings ----------------------------------------------------------------------------------


def test_settings_name_stores_that_connect_by_themselves(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sync = dibs.sync
    lock = sync.Lock("a", client="reports")
    write(f'[stores.reports]\nurl = "sqlite:///{tmp_path}/reports.db"\ncall_timeout = "3s"')
    with lock:
        assert sync.connect(name="reports").lock("a").locked()
    assert (tmp_path / "reports.db").exists()
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", f"sqlite:///{tmp_path}/other.db")
    monkeypatch.setenv("DIBS_STORES__REPORTS__CONNECT_TIMEOUT", "4s")
    with lock:
        for name, locked in ("reports", False), ("other", True):
            with sync.connect(f"sqlite:///{tmp_path}/{name}.db") as client:
                assert client.lock("a").locked() is locked
    runtime = sync.connect(name="reports").hub.thread_runtime()
    assert (runtime.connect_timeout, runtime.call_timeout) == (4, 3)


def test_a_timeout_that_changes_is_followed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", url)
    first = dibs.sync.connect(name="reports").hub
    monkeypatch.setenv("DIBS_STORES__REPORTS__CALL_TIMEOUT", "3s")
    second = dibs.sync.connect(name="reports").hub
    assert (first.thread_runtime().call_timeout, second.thread_runtime().call_timeout) == (10, 3)


def test_what_a_program_connects_comes_before_settings(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", f"{url}-settings")
    lock = dibs.sync.Lock("a", client="reports")
    with dibs.sync.connect(f"{url}-program", name="reports"):
        assert url_of(lock) == f"{url}-program"
    assert url_of(lock) == f"{url}-settings"


def test_what_is_in_use_by_settings_is_not_replaced(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", url)
    lease = dibs.sync.Lock("a", client="reports").acquire()
    with pytest.raises(ValueError, match="the name 'reports' is in use here for"):
        dibs.sync.connect(f"{url}-2", name="reports")
    with dibs.sync.connect(url, name="reports") as client:
        assert client.lock("a").locked()
        client.close()
    assert not lease.lost, "the settings' store stays open"
    assert lease.release()


def test_a_wrong_url_in_settings_tells_where_it_stands(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write('[stores.reports]\nurl = "mongodb://h"')
    with pytest.raises(NotConfigured, match=re.escape(f"{path}: [stores.reports] url: no backend")):
        dibs.sync.Lock("a", client="reports").acquire()
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", "mongodb://h")
    with pytest.raises(NotConfigured, match=r"^DIBS_STORES__REPORTS__URL: no backend serves"):
        dibs.sync.Lock("a", client="reports").acquire()


@pytest.mark.multiprocess
def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    lines = run_script(
        """
        import os, sys
        from dibs.sync import Lock, connect
        lock = Lock("a", client="reports")
        with connect(sys.argv[1], name="reports"):
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
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = dibs.Lock("a", client="reports")
    how = (
        "Name one with connect(url, name='reports'), DIBS_STORES__REPORTS__URL, or "
        "[stores.reports] url in the file that DIBS_CONFIG names"
    )
    with pytest.raises(NotConfigured) as error:
        await lock.acquire()
    assert str(error.value) == f"no store is named 'reports' here: no store has a name yet. {how}"
    write('[stores.audit]\nurl = "memory://audit"')
    monkeypatch.setenv("DIBS_STORES__MY-OWN__URL", "memory://own")
    async with dibs.connect(url, name="report"):
        with pytest.raises(NotConfigured) as error:
            await lock.acquire()
    known = "there are 'audit', 'my-own', 'report'"
    assert str(error.value) == f"no store is named 'reports' here: {known}. {how}"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("redis://me:secret@h", r"'redis://me:\*\*\*@h' is a URL, and no name of a store"),
        ("default", "no store is called 'default': that is the one of whoever names none"),
        ("Reports", "a store's name is 'Reports': write it with a to z"),
        ("", "a store's name is '': write it with a to z"),
    ],
)
def test_what_is_no_name_is_told(module: Any, url: str, name: str, told: str) -> None:
    makers: list[Callable[[], Any]] = [
        lambda: module.Lock("a", client=name),
        lambda: module.RWLock("a", client=name),
        lambda: module.Lock.wraps("a", client=name)(lambda: None),
        lambda: module.connect(url, name=name),
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
        module.connect("memory://", name=wrong)


def test_options_go_with_a_url(module: Any) -> None:
    with pytest.raises(TypeError, match=r"no URL: .* and the store named 'reports' has its own"):
        module.connect(name="reports", call_timeout=3)


def test_what_a_named_store_can_not_promise_is_told_when_it_is_used(url: str) -> None:
    lock = dibs.sync.Lock("a", client="reports", require="durable")
    with dibs.sync.connect(url, name="reports"):
        with pytest.raises(MissingCapability, match="can't promise durable"):
            lock.acquire()


def test_all_of_several_go_to_the_named_store(url: str) -> None:
    sync = dibs.sync
    one, two = sync.Lock("a", client="reports"), sync.Lock("b", client="reports")
    with sync.connect(url, name="reports") as client, sync.AllOf(one, two):
        assert client.lock("a").locked()
        assert client.lock("b").locked()
        with sync.AllOf(client.lock("c"), sync.Lock("d", client="reports")):
            assert two.locked()
