"""Which store is used where none is named."""

import asyncio
import contextvars
import threading
import warnings
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import ImplicitStoreWarning, NotConfigured, client
from dibs.client import default_session, session_named
from tests.runtime.scripts import run_script


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This user's home, as the password database has it."""
    monkeypatch.setattr("dibs.session._home", lambda: tmp_path)
    return tmp_path


def memory() -> Any:
    return dibs.sync.connect(f"memory://{uuid4()}")


def url_in_use() -> str:
    return default_session().url


# -- no store is named ------------------------------------------------------------------------------


def line_of(warned: pytest.WarningsRecorder) -> str:
    """The line that the warning points at."""
    (warning,) = warned
    assert warning.filename == __file__
    return Path(__file__).read_text("utf-8").splitlines()[warning.lineno - 1].strip()


def test_the_implicit_store_warns_once_and_is_in_the_users_home(home: Path) -> None:
    with pytest.warns(ImplicitStoreWarning, match="only excludes your own processes on") as warned:
        with dibs.sync.Lock("a"):
            pass
    assert line_of(warned) == 'with dibs.sync.Lock("a"):'
    assert any(path.suffix == ".db" for path in home.rglob("*"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with dibs.sync.Lock("b"):
            pass


async def test_the_warning_points_at_the_line_that_named_no_store(home: Path) -> None:
    @dibs.Lock.wraps("a")
    async def work() -> None: ...

    with pytest.warns(ImplicitStoreWarning) as warned:
        async with dibs.Lock("a"):
            pass
    assert line_of(warned) == 'async with dibs.Lock("a"):'
    (session,) = client._by_settings.values()
    for connect in (dibs.connect, dibs.sync.connect):
        client._by_settings.clear()
        with pytest.warns(ImplicitStoreWarning) as warned:
            connect()
        assert line_of(warned) == "connect()"
    client._by_settings.clear()
    with pytest.warns(ImplicitStoreWarning) as warned:
        await work()
    assert line_of(warned) == "await work()"
    await dibs.Client(session).close()
    await dibs.connect().close()
    await dibs.Client(default_session()).session.close_loop()


def test_home_in_the_environment_changes_nothing(tmp_path: Path) -> None:
    lines = run_script(
        """
import os, sys
os.environ["HOME"] = sys.argv[1]
from dibs.session import implicit_url
print(implicit_url())
os.environ["HOME"] = "/nowhere"
print(implicit_url())
""",
        tmp_path,
    )
    assert lines[0] == lines[1]
    assert str(tmp_path) not in lines[0]


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
        dibs.sync.Lock("a").acquire()
    assert not list(home.iterdir())


@pytest.mark.parametrize("scheme", ["sqlite", "memory"])
def test_where_a_cluster_is_required_a_store_for_one_host_is_refused(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_REQUIRE", "cluster")
    monkeypatch.setenv("DIBS_URL", f"{scheme}:///{tmp_path / 'leases.db'}")
    with pytest.raises(dibs.MissingCapability, match="DIBS_REQUIRE=cluster"):
        dibs.sync.Lock("a").acquire()
    assert not list(tmp_path.iterdir())


def test_many_threads_that_come_first_get_one_store(home: Path) -> None:
    stores: list[object] = []
    barrier = threading.Barrier(8)

    def first() -> None:
        barrier.wait()
        stores.append(default_session())

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=first) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(map(id, stores))) == 1
    assert len(warned) == 1


@pytest.mark.parametrize("url", ["", "nonsense", "mongodb://x", "://", "memory:x", "memory://a?b"])
def test_a_url_of_no_store_is_an_error(url: str) -> None:
    with pytest.raises(NotConfigured):
        dibs.connect(url)


# -- the default store ------------------------------------------------------------------------------


def test_set_default_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "memory://environment")
    lock, by_hand = dibs.sync.Lock("a"), memory()
    dibs.set_default(by_hand)
    assert url_in_use() == by_hand.url
    with lock:
        assert by_hand.lock("a").locked(), "though it was made before"
    dibs.set_default("memory://by-url")
    assert url_in_use() == "memory://by-url"
    dibs.sync.connect("memory://by-connect", default=True)
    assert url_in_use() == "memory://by-connect"
    dibs.set_default(None)
    assert url_in_use() == "memory://environment"


def test_closing_a_default_client_restores_the_one_before() -> None:
    sync = dibs.sync
    dibs.set_default("memory://before")
    with sync.connect("memory://outer", default=True) as outer:
        with sync.connect("memory://inner", default=True):
            assert url_in_use() == "memory://inner"
        assert url_in_use() == "memory://outer"
        outer.close()
        outer.close()
        assert url_in_use() == "memory://before"
    assert url_in_use() == "memory://before"
    with outer:  # it is opened again
        assert url_in_use() == "memory://outer"
    assert url_in_use() == "memory://before"


def test_of_two_that_overlap_either_may_end_first() -> None:
    dibs.set_default("memory://before")
    one = dibs.sync.connect("memory://1", default=True)
    two = dibs.sync.connect("memory://2", default=True)
    one.close()
    assert url_in_use() == "memory://2"
    two.close()
    assert url_in_use() == "memory://before", "and not the first, which is closed"


def test_a_default_that_is_set_meanwhile_stays() -> None:
    dibs.set_default("memory://before")
    with dibs.sync.connect("memory://a", default=True) as client:
        dibs.set_default("memory://said")
        with client:
            assert url_in_use() == "memory://said"
        client.close()
    assert url_in_use() == "memory://said"


def test_a_client_of_the_default_store_changes_nothing() -> None:
    dibs.set_default("memory://before")
    with memory() as double, dibs.override(double):
        dibs.sync.connect(default=True)
    assert url_in_use() == "memory://before"


def test_settings_that_change_are_followed_the_timeouts_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIBS_URL", "memory://a")
    first = default_session()
    assert default_session() is first
    monkeypatch.setenv("DIBS_CALL_TIMEOUT", "3s")
    second = default_session()
    assert (second.thread_runtime().call_timeout, first.thread_runtime().call_timeout) == (3, 10)
    monkeypatch.setenv("DIBS_CONNECT_TIMEOUT", "4s")
    assert default_session().thread_runtime().connect_timeout == 4
    monkeypatch.delenv("DIBS_CONNECT_TIMEOUT")
    assert default_session() is second


# -- override ---------------------------------------------------------------------------------------


def test_overrides_nest_also_of_the_same_client() -> None:
    one, two = memory(), memory()
    dibs.set_default("memory://default")
    with dibs.override(one):
        with dibs.override(two):
            with dibs.override(one):
                assert url_in_use() == one.url
            assert url_in_use() == two.url
        assert url_in_use() == one.url
    assert url_in_use() == "memory://default"


def test_a_named_store_is_overridden_alone() -> None:
    real, double, other = memory(), memory(), memory()
    dibs.set_default(real)
    with dibs.override(double, name="reports"):
        assert session_named("reports").url == double.url
        assert url_in_use() == real.url
        with dibs.override(other), dibs.sync.Lock("a", client="reports"):
            assert double.lock("a").locked()
            assert url_in_use() == other.url
        with dibs.override(other, name="reports"):
            assert session_named("reports").url == other.url
        assert session_named("reports").url == double.url
    with pytest.raises(dibs.NotConfigured):
        session_named("reports")


def test_an_override_comes_before_what_is_connected_meanwhile() -> None:
    """As where a test starts the application, whose lifespan connects."""
    double = memory()
    with dibs.override(double), dibs.override(double, name="reports"):
        real = dibs.sync.connect("memory://real", default=True)
        assert session_named("reports").url == url_in_use() == double.url
    with real:
        assert url_in_use() == "memory://real"


async def test_two_tests_at_once_have_each_their_own() -> None:
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


def test_two_threads_at_once_have_each_their_own() -> None:
    both_are_in, seen = threading.Barrier(2), []

    def test(client: Any) -> None:
        with dibs.override(client):
            both_are_in.wait()
            seen.append(url_in_use() == client.url)
            both_are_in.wait()

    threads = [threading.Thread(target=test, args=(memory(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True, True]


def test_an_override_holds_in_every_thread_and_ends_with_an_exception() -> None:
    double = memory()
    dibs.set_default("memory://default")
    found: list[str] = []
    with pytest.raises(ZeroDivisionError), dibs.override(double):
        thread = threading.Thread(target=lambda: found.append(url_in_use()))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert found == [double.url]
    assert url_in_use() == "memory://default"


def test_overrides_may_end_in_any_order_and_in_other_contexts() -> None:
    """A fixture's two halves may run in contexts of their own."""
    dibs.set_default("memory://default")
    inside, other = contextvars.copy_context(), contextvars.copy_context()
    first, second = dibs.override(memory()), dibs.override(two := memory())
    inside.run(first.__enter__)
    inside.run(second.__enter__)
    copied = inside.copy()
    other.run(first.__exit__, None, None, None)
    assert inside.run(url_in_use) == two.url
    other.run(second.__exit__, None, None, None)
    for context in (inside, copied, other):
        assert context.run(url_in_use) == "memory://default"
    assert not client._overrides
