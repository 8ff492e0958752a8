"""Which store is used where none is named."""

import threading
import warnings
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import leasehold
import leasehold.sync
from leasehold import ImplicitStoreWarning, NotConfigured, defaults
from tests.runtime.scripts import run_script


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This user's home, as the password database has it."""
    monkeypatch.setattr("leasehold.hub._home", lambda: tmp_path)
    return tmp_path


def memory() -> Any:
    return leasehold.sync.connect(f"memory://{uuid4()}")


def url_in_use() -> str:
    return defaults.default_hub().url


def test_the_implicit_store_warns_once_and_lies_in_the_users_state(home: Path) -> None:
    with pytest.warns(ImplicitStoreWarning, match="exclude only this user on this host") as warned:
        with leasehold.sync.Lock("a"):
            pass
    assert len(warned) == 1
    assert warned[0].filename == __file__, "it points to whoever named no store"
    assert any(path.suffix == ".db" for path in home.rglob("*"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with leasehold.sync.Lock("b"):
            pass


def test_home_in_the_environment_changes_nothing(tmp_path: Path) -> None:
    lines = run_script(
        """
import os, sys
os.environ["HOME"] = sys.argv[1]
from leasehold.hub import implicit_url
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
    with pytest.raises(NotConfigured, match="excludes only one pod"):
        leasehold.sync.Lock("a").acquire()
    assert not list(home.iterdir())


def test_where_a_cluster_is_required_it_is_an_error_instead(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_REQUIRE", "cluster")
    with pytest.raises(NotConfigured, match="LEASEHOLD_REQUIRE=cluster"):
        leasehold.sync.Lock("a").acquire()
    assert not list(home.iterdir())


async def test_the_url_in_the_environment_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid4()}"
    monkeypatch.setenv("LEASEHOLD_URL", url)
    async with leasehold.Lock("a"):
        assert await leasehold.connect(url).lock("a").locked()


def test_set_default_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_URL", "memory://environment")
    client = memory()
    leasehold.set_default(client)
    assert url_in_use() == client.url
    leasehold.set_default("memory://by-url")
    assert url_in_use() == "memory://by-url"
    leasehold.sync.connect("memory://by-connect", default=True)
    assert url_in_use() == "memory://by-connect"
    leasehold.set_default(None)
    assert url_in_use() == "memory://environment"


def test_a_primitive_that_was_made_before_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = leasehold.sync.Lock("a")
    for _ in range(2):
        client = memory()
        leasehold.set_default(client)
        with lock:
            assert client.lock("a").locked()


def test_overrides_nest_also_of_the_same_client() -> None:
    one, two = memory(), memory()
    leasehold.set_default("memory://default")
    with leasehold.override(one):
        with leasehold.override(two):
            with leasehold.override(one):
                assert url_in_use() == one.url
            assert url_in_use() == two.url
        assert url_in_use() == one.url
    assert url_in_use() == "memory://default"


def test_an_override_holds_in_every_thread_and_ends_with_an_exception() -> None:
    client = memory()
    leasehold.set_default("memory://default")
    found: list[str] = []
    with pytest.raises(ZeroDivisionError), leasehold.override(client):
        thread = threading.Thread(target=lambda: found.append(url_in_use()))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert found == [client.url]
    assert url_in_use() == "memory://default"


def test_many_threads_that_come_first_get_one_store(home: Path) -> None:
    hubs: list[object] = []
    barrier = threading.Barrier(8)

    def first() -> None:
        barrier.wait()
        hubs.append(defaults.default_hub())

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=first) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(map(id, hubs))) == 1
    assert len(warned) == 1


@pytest.mark.parametrize("url", ["", "nonsense", "mongodb://x", "://", "memory:x", "memory://a?b"])
def test_a_url_that_nobody_serves_is_told(url: str) -> None:
    with pytest.raises(NotConfigured):
        leasehold.connect(url)
