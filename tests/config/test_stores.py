"""Which store is used: the default one, one that has a name, or one that a test puts in its place."""

import asyncio
import contextvars
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import dibs
from dibs import ImplicitStoreWarning, LockConfig, MissingCapability, NotConfigured, client, sync
from dibs.client import default_session, session_named
from dibs.session import implicit_url
from dibs.testing import steal
from tests.config.conftest import Write


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This user's home, as the password database has it."""
    monkeypatch.setattr("dibs.session._home", lambda: tmp_path)
    return tmp_path


def memory() -> Any:
    return sync.connect(f"memory://{uuid4()}")


def url_in_use() -> str:
    return default_session().url


def in_threads(*functions: Callable[[], object]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- no store is named ------------------------------------------------------------------------------


def line_of(warned: pytest.WarningsRecorder) -> str:
    """The line that the warning points at."""
    (warning,) = warned
    assert warning.filename == __file__
    return Path(__file__).read_text("utf-8").splitlines()[warning.lineno - 1].strip()


async def test_the_implicit_store_warns_once_at_the_line_that_named_none(home: Path) -> None:
    @dibs.Lock.wraps("a")
    async def work() -> None: ...

    with pytest.warns(ImplicitStoreWarning, match="only excludes your own processes on") as warned:
        async with dibs.Lock("a"):
            pass
    assert line_of(warned) == 'async with dibs.Lock("a"):'
    assert any(path.suffix == ".db" for path in home.rglob("*"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with dibs.Lock("b"):
            pass
    (session,) = client._by_settings.values()
    client._by_settings.clear()
    with pytest.warns(ImplicitStoreWarning) as warned:
        sync.connect()
    assert line_of(warned) == "sync.connect()"
    client._by_settings.clear()
    with pytest.warns(ImplicitStoreWarning) as warned:
        await work()
    assert line_of(warned) == "await work()"
    await dibs.Client(session).close()
    await dibs.Client(default_session()).session.close_loop()


def test_home_in_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = implicit_url()
    monkeypatch.setenv("HOME", "/nowhere")
    assert implicit_url() == before


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "KUBERNETES_SERVICE_HOST",
            "10.0.0.1",
            r"only excludes processes in this pod\. Set DIBS_URL .* kubernetes://",
        ),
        ("DIBS_REQUIRE", "cluster", "DIBS_REQUIRE=cluster"),
        ("DIBS_REQUIRE", "clusterr", "the only allowed value is cluster"),
    ],
)
def test_in_a_cluster_it_is_an_error_instead(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(NotConfigured, match=told):
        sync.Lock("a").acquire()
    if value == "cluster":
        monkeypatch.setenv("DIBS_URL", f"sqlite:///{home / 'leases.db'}")
        with pytest.raises(MissingCapability, match=told):
            sync.Lock("a").acquire()
    assert not list(home.iterdir())


def test_many_threads_that_come_first_get_one_store(home: Path) -> None:
    stores: list[object] = []
    barrier = threading.Barrier(8)

    def first() -> None:
        barrier.wait()
        stores.append(default_session())

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        in_threads(*[first] * 8)
    assert len(set(map(id, stores))) == 1
    assert len(warned) == 1


# -- the default store ------------------------------------------------------------------------------


def test_set_default_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "memory://environment")
    lock, by_hand = sync.Lock("a"), memory()
    dibs.set_default(by_hand)
    assert url_in_use() == by_hand.url
    with lock as lease:
        assert by_hand.lock("a").locked(), "though it was made before"
        sync.connect().close()
        assert not lease.lost, "that left the default store open"
    dibs.set_default("memory://by-url")
    assert url_in_use() == "memory://by-url"
    sync.connect("memory://by-connect", default=True)
    assert url_in_use() == "memory://by-connect"
    dibs.set_default(None)
    assert url_in_use() == "memory://environment"


def test_closing_a_default_client_restores_the_one_before() -> None:
    dibs.set_default("memory://before")
    with sync.connect("memory://outer", default=True) as outer:
        with sync.connect("memory://inner", default=True):
            assert url_in_use() == "memory://inner"
        assert url_in_use() == "memory://outer"
        outer.close()
        outer.close()
        assert url_in_use() == "memory://before"
    with outer:  # it is opened again
        assert url_in_use() == "memory://outer"
    one, two = (sync.connect(f"memory://{name}", default=True) for name in "12")
    one.close()
    assert url_in_use() == "memory://2", "of two that overlap either may end first"
    two.close()
    assert url_in_use() == "memory://before", "and not the first, which is closed"
    with sync.connect("memory://a", default=True):
        dibs.set_default("memory://set-meanwhile")
    assert url_in_use() == "memory://set-meanwhile"
    with memory() as double, dibs.override(double):
        sync.connect(default=True)
    assert url_in_use() == "memory://set-meanwhile", "that is the default already"


# -- override ---------------------------------------------------------------------------------------


def test_overrides_nest_and_end_with_an_exception() -> None:
    one, two, seen = memory(), memory(), list[str]()
    dibs.set_default("memory://default")
    with dibs.override(one):
        with dibs.override(two):
            with dibs.override(one):
                assert url_in_use() == one.url
            assert url_in_use() == two.url
            in_threads(lambda: seen.append(url_in_use()))
            assert seen == [two.url], "in all threads"
        with pytest.raises(ZeroDivisionError), dibs.override(two):
            raise ZeroDivisionError
        # as where a test starts the application, whose lifespan connects
        real = sync.connect("memory://real", default=True)
        assert url_in_use() == one.url
    with real:
        assert url_in_use() == "memory://real"


def test_a_named_store_is_overridden_alone() -> None:
    real, double, other = memory(), memory(), memory()
    dibs.set_default(real)
    with dibs.override(double, name="reports"):
        assert session_named("reports").url == double.url
        assert url_in_use() == real.url
        with dibs.override(other), sync.Lock("a", client="reports"):
            assert double.lock("a").locked()
            assert url_in_use() == other.url
        with dibs.override(other, name="reports"):
            assert session_named("reports").url == other.url
        assert session_named("reports").url == double.url
    with pytest.raises(NotConfigured):
        session_named("reports")


async def test_two_tests_at_once_have_each_their_own() -> None:
    """An override holds in tasks and threads that are started within it."""
    both_are_in, seen = asyncio.Barrier(2), []

    async def child() -> str:
        return url_in_use()

    async def test(client: Any) -> None:
        with dibs.override(client), dibs.override(client, name="reports"):
            await both_are_in.wait()
            urls = {url_in_use(), session_named("reports").url, await asyncio.create_task(child())}
            urls.add(await asyncio.to_thread(url_in_use))
            seen.append(urls == {client.url})
            await both_are_in.wait()

    await asyncio.gather(test(memory()), test(memory()))
    assert seen == [True, True]


def test_overrides_may_end_in_any_order_and_in_other_contexts() -> None:
    """A fixture's two halves may run in contexts of their own."""
    dibs.set_default("memory://default")
    inside, other = contextvars.copy_context(), contextvars.copy_context()
    first, second = dibs.override(memory()), dibs.override(two := memory())
    inside.run(first.__enter__)
    inside.run(second.__enter__)
    other.run(first.__exit__, None, None, None)
    assert inside.run(url_in_use) == two.url
    other.run(second.__exit__, None, None, None)
    for context in (inside, inside.copy(), other):
        assert context.run(url_in_use) == "memory://default"


# -- stores by name: settings name them, primitives take the name for a client ----------------------


@pytest.fixture
def url() -> str:
    return f"memory://{uuid4()}"


@pytest.fixture
def reports(url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of the store that is named so."""
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", url)
    return sync.Client.named("reports")


@pytest.mark.usefixtures("reports")
async def test_both_sides_see_the_same_store(url: str) -> None:
    async with dibs.Lock("a", client="reports") as lease:
        there = await asyncio.to_thread(sync.Lock("a", client="reports").status)
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
    store: Any = {"client": "reports"}

    @sync.Lock.wraps("wrapped", **store)
    def wrapped() -> int:
        return sync.current_lease().token

    made: list[Any] = [
        sync.Lock("a", **store),
        sync.Lock.from_config("b", LockConfig(), **store),
        sync.Semaphore("c", 2, **store),
        sync.RWLock("d", **store).read(),
        sync.TaskLock("e", 0, 60, **store),
        sync.LeaderElection("f", **store),
    ]
    for primitive in made:
        with primitive:
            assert reports.status(primitive.name, primitive.kind).holders, primitive
    assert wrapped() == reports.status("wrapped").last_token
    with sync.AllOf(sync.Lock("g", **store), reports.lock("h")):
        assert reports.lock("g").locked()
    lease = made[0].acquire()
    assert steal(made[0]) > lease.token
    lease.release()


def test_settings_name_stores_that_connect_by_themselves(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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


async def test_an_unknown_name_is_an_error_that_lists_the_known_ones(
    write: Write, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    lock = dibs.Lock("a", client="reports", require={"process"})
    with pytest.raises(NotConfigured, match="'reports' here: no store has a name yet"):
        await lock.acquire()
    write('[stores.audit]\nurl = "memory://audit"')
    monkeypatch.setenv("DIBS_STORES__MY_OWN__URL", "memory://own")
    with pytest.raises(NotConfigured) as error:
        await lock.acquire()
    assert str(error.value) == (
        "no store is named 'reports' here: there are 'audit', 'my_own'. Name one with "
        "DIBS_STORES__REPORTS__URL, or with [stores.reports] url in the file that DIBS_CONFIG names"
    )
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", url)
    async with lock:
        assert await dibs.connect(url).lock("a").locked()


NOT_NAMES: list[tuple[Any, type[Exception], str]] = [
    ("redis://me:secret@h", ValueError, r"'redis://me:\*\*\*@h' is a URL, and no name of a store"),
    ("default", ValueError, "'default' is not a store name. Primitives without client= use the"),
    ("Reports", ValueError, "a store's name is 'Reports': write it with a to z"),
    (3, TypeError, "give what connect.. returned, or the name|a store's name is .*: give a text"),
]


@pytest.mark.parametrize(("name", "kind", "told"), NOT_NAMES)
def test_what_is_no_name_is_refused(url: str, name: Any, kind: type[Exception], told: str) -> None:
    makers: list[Callable[[], Any]] = [
        lambda: dibs.Lock("a", client=name),
        lambda: sync.Lock.wraps("a", client=name)(lambda: None),
        lambda: dibs.Client.named(name),
        lambda: dibs.override(dibs.connect(url), name=name),
    ]
    for make in makers:
        with pytest.raises(kind, match=told):
            make()
