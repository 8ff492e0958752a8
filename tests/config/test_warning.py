"""The warning about the implicit store points at the line that named no store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dibs
import dibs.sync
from dibs import ImplicitStoreWarning, defaults, stores


@pytest.fixture(autouse=True)
async def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[None]:
    for name in (
        "DIBS_URL",
        "DIBS_CONFIG",
        "DIBS_REQUIRE",
        "KUBERNETES_SERVICE_HOST",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("dibs.hub._home", lambda: tmp_path)
    monkeypatch.setattr(stores, "_by_settings", {})
    monkeypatch.setattr(defaults, "_said", ())
    yield
    for hub in stores._by_settings.values():
        await dibs.Client(hub).close()


def line_of(warned: pytest.WarningsRecorder) -> str:
    (warning,) = warned
    assert warning.filename == __file__
    return Path(__file__).read_text("utf-8").splitlines()[warning.lineno - 1].strip()


async def test_in_a_task() -> None:
    with pytest.warns(ImplicitStoreWarning) as warned:
        async with dibs.Lock("a"):
            pass
    assert line_of(warned) == 'async with dibs.Lock("a"):'


async def test_in_a_wrapped_function() -> None:
    @dibs.Lock.wraps("a")
    async def work() -> None: ...

    with pytest.warns(ImplicitStoreWarning) as warned:
        await work()
    assert line_of(warned) == "await work()"


async def test_in_a_client_of_the_default_store() -> None:
    for connect in (dibs.connect, dibs.sync.connect):
        stores._by_settings.clear()
        with pytest.warns(ImplicitStoreWarning) as warned:
            connect()
        assert line_of(warned) == "connect()"
