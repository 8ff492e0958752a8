"""The warning about the implicit store points at the line that named no store."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import ImplicitStoreWarning, LockConfig, UnsafeTiming, client


@pytest.fixture(autouse=True)
async def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[None]:
    for name in (
        "DIBS_URL",
        "DIBS_CONFIG",
        "DIBS_REQUIRE",
        "KUBERNETES_SERVICE_HOST",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("dibs.session._home", lambda: tmp_path)
    monkeypatch.setattr(client, "_by_settings", {})
    monkeypatch.setattr(client, "_defaults", ())
    yield
    for session in client._by_settings.values():
        await dibs.Client(session).close()


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
        client._by_settings.clear()
        with pytest.warns(ImplicitStoreWarning) as warned:
            connect()
        assert line_of(warned) == "connect()"


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("priority", True, "give an int"),
        ("priority", 1.0, "give an int"),
        ("priority", None, "give an int"),
        ("note", 3, "give a text"),
        ("note", None, "give a text"),
        ("label", b"me", "give a text"),
        ("auto_renew", "yes", "give True or False"),
        ("auto_renew", 1, "give True or False"),
    ],
)
def test_a_setting_of_another_type_is_refused(field: str, value: Any, wanted: str) -> None:
    for make in (LockConfig, lambda **o: dibs.Lock("a", **o)):
        with pytest.raises(TypeError, match=f"{field} is .*: {wanted}"):
            make(**{field: value})


def test_nan_is_told_from_a_negative() -> None:
    with pytest.raises(ValueError, match="wait is NaN, which is no amount of time"):
        LockConfig(wait=float("nan"))
    with pytest.raises(ValueError, match="can't be negative"):
        LockConfig(wait=-1)


@pytest.mark.parametrize("variable", ["DIBS_TTL", "DIBS_LOCK__CART__TTL", "MINE_TTL"])
@pytest.mark.parametrize("ttl", ["0.01", "0"])
def test_an_unsafe_ttl_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, ttl: str
) -> None:
    monkeypatch.setenv(variable, ttl)
    prefix = "MINE_" if variable.startswith("MINE") else None
    with pytest.raises(UnsafeTiming, match=f"^{variable} is '{ttl}': ttl is"):
        dibs.Lock("cart", env_prefix=prefix)


def test_a_max_hold_of_nothing_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_MAX_HOLD", "0")
    with pytest.raises(UnsafeTiming, match=r"^DIBS_MAX_HOLD is '0': max_hold is 0"):
        dibs.sync.Lock("cart")


def test_a_given_value_is_not_blamed_on_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_TTL", "0.01")
    assert dibs.Lock("cart", ttl=5).config.ttl == 5
    assert dibs.Lock("cart", env_load=False).config.ttl == 30
    with pytest.raises(UnsafeTiming, match=r"^ttl is"):
        dibs.Lock("cart", ttl=0.01)


def test_a_wait_without_end_may_be_said_in_words() -> None:
    assert LockConfig(wait="forever").wait is None
    assert LockConfig(max_hold="forever").max_hold is None
