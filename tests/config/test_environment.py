"""Where a setting comes from: the keyword, this name's variable, the variable for all, the default."""

from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dibs
import dibs.sync
from dibs import LockConfig, UnsafeTiming
from dibs.config import optional_seconds, safe_ttl, seconds
from dibs.sync import Lock
from tests.config.conftest import Write


@pytest.fixture(params=[dibs.Lock, dibs.sync.Lock], ids=["async", "sync"])
def lock_type(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_each_source_gives_way_to_the_one_before(
    lock_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lock_type("cart").config.ttl == 30
    monkeypatch.setenv("DIBS_TTL", "40s")
    assert lock_type("cart").config.ttl == 40
    monkeypatch.setenv("DIBS_LOCK__CART__TTL", "50")
    assert lock_type("cart").config.ttl == 50
    assert lock_type("other").config.ttl == 40
    assert lock_type("cart", ttl=60).config.ttl == 60
    assert lock_type("cart", env_load=False).config.ttl == 30
    assert lock_type.from_config("cart", LockConfig()).config.ttl == 30


def test_every_setting_can_be_set_there(lock_type: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "WAIT": "5s",
        "PRIORITY": "7",
        "NOTE": "why",
        "LABEL": "web",
        "AUTO_RENEW": "off",
        "MAX_HOLD": "1h",
    }.items():
        monkeypatch.setenv(f"DIBS_LOCK__CART__{name}", value)
    assert lock_type("cart").config == LockConfig(
        wait=5, priority=7, note="why", label="web", auto_renew=False, max_hold=3600
    )


def test_none_given_is_not_nothing_given(lock_type: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_WAIT", "5s")
    assert lock_type("cart").config.wait == 5
    assert lock_type("cart", wait=None).config.wait is None
    monkeypatch.setenv("DIBS_LOCK__CART__WAIT", "forever")
    assert lock_type("cart").config.wait is None


@pytest.mark.parametrize("name", ["Cart", "order:42", "a b", "ärger", b"cart", "a/b"])
def test_only_literal_names_have_variables_of_their_own(
    lock_type: Any, monkeypatch: pytest.MonkeyPatch, name: Any
) -> None:
    text = name if isinstance(name, str) else name.decode()
    monkeypatch.setenv(f"DIBS_LOCK__{text.upper()}__TTL", "50")
    assert lock_type(name).config.ttl == 30


def test_a_prefix_of_ones_own(lock_type: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TTL", "50s")
    monkeypatch.setenv("DIBS_LOCK__CART__TTL", "60s")
    assert lock_type("cart", env_prefix="SHOP_").config.ttl == 50
    assert lock_type("order:42", env_prefix="SHOP_").config.ttl == 50
    monkeypatch.delenv("SHOP_TTL")
    assert lock_type("cart", env_prefix="SHOP_").config.ttl == 30


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("TTL", "soon"),
        ("TTL", "-3"),
        ("WAIT", "5 minutes"),
        ("PRIORITY", "high"),
        ("AUTO_RENEW", "maybe"),
        ("MAX_HOLD", "nan"),
    ],
)
def test_a_wrong_value_names_its_variable(
    lock_type: Any, monkeypatch: pytest.MonkeyPatch, field: str, value: str
) -> None:
    monkeypatch.setenv(f"DIBS_LOCK__CART__{field}", value)
    with pytest.raises(ValueError, match=f"DIBS_LOCK__CART__{field} is '{value}'"):
        lock_type("cart")


def test_semaphores_have_variables_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_SEMAPHORE__GPU__TTL", "50s")
    assert dibs.Semaphore("gpu", 4).config.ttl == 50
    assert dibs.Lock("gpu").config.ttl == 30


def test_flags_may_be_written_in_several_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, value in {"1": True, "Yes": True, " ON ": True, "0": False, "no": False}.items():
        monkeypatch.setenv("DIBS_AUTO_RENEW", text)
        assert dibs.Lock("a").config.auto_renew is value


def test_wraps_reads_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The template stands for the name."""
    monkeypatch.setenv("DIBS_LOCK__NIGHTLY__TTL", "soon")
    with pytest.raises(ValueError, match="DIBS_LOCK__NIGHTLY__TTL"):
        dibs.Lock.wraps("nightly")(lambda: None)
    dibs.Lock.wraps("nightly", env_load=False)(lambda: None)


@pytest.mark.parametrize("name", ["my-cart", "my.cart", "my_cart"])
def test_hyphens_and_dots_are_underscores_in_variables(
    lock_type: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shell exports a variable with a hyphen or a dot."""
    monkeypatch.setenv("DIBS_LOCK__MY_CART__TTL", "7s")
    assert lock_type(name).config.ttl == 7
    for other in {"my-cart", "my.cart", "my_cart"} - {name}:
        with pytest.raises(ValueError, match=r"^DIBS_LOCK__MY_CART__… is for '.*' and for '"):
            lock_type(other)
    monkeypatch.delenv("DIBS_LOCK__MY_CART__TTL")
    assert lock_type("my.cart").config.ttl == 30


def test_two_stores_do_not_share_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_STORES__MY_OWN__URL", "memory://mine")
    assert dibs.sync.Client.named("my-own").url == "memory://mine"
    with pytest.raises(ValueError, match=r"is for 'my-own' and for 'my_own'"):
        dibs.sync.Client.named("my_own")


def test_a_switch_turns_all_of_it_off(
    lock_type: Any, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write('ttl = "9s"\n[leader.a]\nttl = 9')
    monkeypatch.setenv("DIBS_LOCK__A__WAIT", "1s")
    monkeypatch.setenv("DIBS_ENV_LOAD", "true")
    assert (lock_type("a").config.ttl, lock_type("a").config.wait) == (9, 1)
    monkeypatch.setenv("DIBS_ENV_LOAD", "false")
    assert lock_type("a").config == LockConfig()
    assert dibs.LeaderElection("a").ttl == 15
    monkeypatch.setenv("DIBS_ENV_LOAD", "perhaps")
    with pytest.raises(ValueError, match=r"^DIBS_ENV_LOAD is 'perhaps': write true or false"):
        lock_type("a")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("2d", 172800),
        ("7", 7),
        (" 3 s ", 3),
        (2, 2),
        (0.5, 0.5),
        (0, 0),
        (timedelta(minutes=2), 120),
    ],
)
def test_durations_are_seconds_texts_or_timedeltas(text: Any, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("wrong", [True, False, None, [], b"5s", object()])
def test_what_is_no_duration_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="give seconds, a timedelta, or a text"):
        seconds(wrong)


@pytest.mark.parametrize(
    "wrong", [-1, -0.001, nan, "", "5 minutes", "-3s", "1e3", "5M", "٣s", "3s4", timedelta(days=-1)]
)
def test_what_is_no_amount_of_time_is_a_value_error(wrong: Any) -> None:
    with pytest.raises(ValueError, match=" is "):
        seconds(wrong)


@given(st.floats(min_value=0, max_value=1e9), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_text_means_its_number_times_its_unit(number: float, unit: str) -> None:
    factor = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    text = f"{number:.6f}"
    assert seconds(text + unit) == pytest.approx(float(text) * factor)


def test_no_end_is_none_or_infinity() -> None:
    assert optional_seconds(None, "wait") is None
    assert optional_seconds(inf, "wait") is None
    assert optional_seconds("1m", "wait") == 60


@pytest.mark.parametrize("ttl", [0, 0.05, "99ms", inf])
def test_a_ttl_that_is_all_margin_or_endless_is_unsafe(ttl: Any) -> None:
    with pytest.raises(UnsafeTiming, match=r"at least 0\.1 s"):
        safe_ttl(ttl)
    with pytest.raises(UnsafeTiming):
        Lock("a", ttl=ttl)
    with pytest.raises(UnsafeTiming):
        LockConfig(ttl=ttl)


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": True},
        {"ttl": None},
        {"wait": True},
        {"wait": -1},
        {"max_hold": 0},
        {"max_hold": -3},
    ],
)
def test_unsafe_or_senseless_options_are_refused_at_construction(options: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Lock("a", **options)
    with pytest.raises((TypeError, ValueError)):
        LockConfig(**options)


@pytest.mark.parametrize("name", ["", b"", "x" * 513, "é" * 257, "\ud800"])
def test_a_name_is_1_to_512_bytes(name: Any) -> None:
    with pytest.raises(ValueError, match=r"name|Unicode"):
        Lock(name)


def test_a_client_looks_for_settings_once_for_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_TTL", "20s")
    with dibs.sync.connect("memory://a") as client, dibs.sync.connect("memory://b") as later:
        assert client.lock("a").config.ttl == 20
        monkeypatch.setenv("DIBS_TTL", "40s")
        monkeypatch.setenv("DIBS_LOCK__B__TTL", "50s")
        assert [client.lock(name).config.ttl for name in "ab"] == [20, 20]
        assert client.lock("a", note="x").config.ttl == 20
        assert [later.lock(name).config.ttl for name in "ab"] == [40, 50]
        assert client.semaphore("a", 2).config.ttl == 40
