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
from dibs.client import default_is_named, default_session, session_named
from tests.config.conftest import Write
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


def test_the_implicit_store_warns_once_and_lies_in_the_users_state(home: Path) -> None:
    with pytest.warns(
        ImplicitStoreWarning, match="only excludes your own processes on this host"
    ) as warned:
        with dibs.sync.Lock("a"):
            pass
    assert len(warned) == 1
    assert warned[0].filename == __file__, "it points to whoever named no store"
    assert any(path.suffix == ".db" for path in home.rglob("*"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with dibs.sync.Lock("b"):
            pass


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


def test_in_kubernetes_it_is_an_error_instead(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(
        NotConfigured, match=r"only excludes processes in this pod\. Set DIBS_URL .* kubernetes://"
    ):
        dibs.sync.Lock("a").acquire()
    assert not list(home.iterdir())


def test_where_a_cluster_is_required_it_is_an_error_instead(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_REQUIRE", "cluster")
    with pytest.raises(NotConfigured, match="DIBS_REQUIRE=cluster"):
        dibs.sync.Lock("a").acquire()
    monkeypatch.setenv("DIBS_REQUIRE", "clusterr")
    with pytest.raises(NotConfigured, match="the only allowed value is cluster"):
        dibs.sync.Lock("a").acquire()
    assert not list(home.iterdir())


@pytest.mark.parametrize("scheme", ["sqlite", "memory"])
def test_where_a_cluster_is_required_a_store_for_one_host_is_refused(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `require={"cluster"}`."""
    monkeypatch.setenv("DIBS_REQUIRE", "cluster")
    monkeypatch.setenv("DIBS_URL", f"{scheme}:///{tmp_path / 'leases.db'}")
    with pytest.raises(dibs.MissingCapability, match="DIBS_REQUIRE=cluster"):
        dibs.sync.Lock("a").acquire()
    assert not list(tmp_path.iterdir())


async def test_the_url_in_the_environment_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid4()}"
    monkeypatch.setenv("DIBS_URL", url)
    async with dibs.Lock("a"):
        assert await dibs.connect(url).lock("a").locked()


def test_set_default_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "memory://environment")
    client = memory()
    dibs.set_default(client)
    assert url_in_use() == client.url
    dibs.set_default("memory://by-url")
    assert url_in_use() == "memory://by-url"
    dibs.sync.connect("memory://by-connect", default=True)
    assert url_in_use() == "memory://by-connect"
    dibs.set_default(None)
    assert url_in_use() == "memory://environment"


def test_a_primitive_that_was_made_before_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = dibs.sync.Lock("a")
    for _ in range(2):
        client = memory()
        dibs.set_default(client)
        with lock:
            assert client.lock("a").locked()


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


def test_an_override_holds_in_every_thread_and_ends_with_an_exception() -> None:
    client = memory()
    dibs.set_default("memory://default")
    found: list[str] = []
    with pytest.raises(ZeroDivisionError), dibs.override(client):
        thread = threading.Thread(target=lambda: found.append(url_in_use()))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert found == [client.url]
    assert url_in_use() == "memory://default"


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
def test_a_url_that_nobody_serves_is_told(url: str) -> None:
    with pytest.raises(NotConfigured):
        dibs.connect(url)


# -- the default store of a client, while that is open --------------------------------------------------


def test_what_was_the_default_before_a_client_is_it_again_after() -> None:
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


def test_what_is_said_meanwhile_stays() -> None:
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


def test_whether_somebody_named_it(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    assert not default_is_named()
    write('ttl = "20s"')
    assert not default_is_named()
    write('url = "memory://file"')
    assert default_is_named()
    monkeypatch.delenv("DIBS_CONFIG")
    with memory() as client, dibs.override(client):
        assert default_is_named()
    with dibs.sync.connect("memory://", default=True):
        assert default_is_named()
    assert not default_is_named()


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


def test_one_that_ends_in_another_context_has_ended_everywhere() -> None:
    """A fixture's two halves may run in contexts of their own."""
    dibs.set_default("memory://default")
    inside, other = contextvars.copy_context(), contextvars.copy_context()
    override = dibs.override(memory())
    inside.run(override.__enter__)
    copied = inside.copy()
    other.run(override.__exit__, None, None, None)
    for context in (inside, copied, other):
        assert context.run(url_in_use) == "memory://default"
    assert not client._overrides


def test_they_may_end_in_any_order() -> None:
    one, two = memory(), memory()
    dibs.set_default("memory://default")
    first, second = dibs.override(one), dibs.override(two)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert url_in_use() == two.url
    second.__exit__(None, None, None)
    assert url_in_use() == "memory://default"
