"""Where a setting comes from, and how a wrong one is reported: keyword, variables, file, default."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

import dibs
import dibs.sync
from dibs import LeaderConfig, LockConfig, NotConfigured, TaskLockConfig, UnsafeTiming
from dibs.config import seconds
from dibs.settings import STORE_KEYS
from dibs.sync import Lock
from tests.config.conftest import Write
from tests.pages import DOCS

EVERYTHING = """
ttl = "20s"
wait = 5

[lock.cart]
ttl = "2m"
max_hold = 90.5

[semaphore.gpu]
ttl = 70

[tasklock.nightly]
max_hold = "1h"

[leader.cluster]
retry = 4
"""


def test_each_primitive_finds_its_own_settings_in_the_file(write: Write) -> None:
    write(EVERYTHING)
    assert dibs.Lock("cart").config == LockConfig(ttl=120, wait=5, max_hold=90.5)
    assert dibs.RWLock("cart").config == dibs.Lock("gpu").config == LockConfig(ttl=20, wait=5)
    assert dibs.Semaphore("gpu", 2).config == LockConfig(ttl=70, wait=5)
    assert dibs.TaskLock("nightly", 1).max_hold == 3600
    leader = dibs.LeaderElection("cluster")
    assert (leader.ttl, leader.retry) == (15, 4), "nothing from what is for all"
    assert dibs.TaskLock("other", 1, 60).config.ttl == 60


def test_each_source_gives_way_to_the_one_before(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ttl(**more: Any) -> Any:
        return Lock("cart", **more).config.ttl

    assert ttl() == 30
    write('ttl = "1m"')
    assert ttl() == 60
    write('ttl = "1m"\n[lock.cart]\nttl = "2m"')
    assert ttl() == 120
    monkeypatch.setenv("DIBS_TTL", "3m")
    assert ttl() == 180
    monkeypatch.setenv("DIBS_LOCK__CART__TTL", "4m")
    assert ttl() == 240
    assert Lock("other").config.ttl == 180
    assert ttl(ttl="5m") == 300
    assert ttl(env_load=False) == 30
    assert Lock.from_config("cart", LockConfig()).config.ttl == 30
    monkeypatch.setenv("SHOP_TTL", "6m")
    assert ttl(env_prefix="SHOP_") == 360
    assert Lock("order:42", env_prefix="SHOP_").config.ttl == 360
    monkeypatch.delenv("SHOP_TTL")
    assert ttl(env_prefix="SHOP_") == 180
    with pytest.raises(UnsafeTiming, match=r"^ttl is"):
        ttl(ttl=0.01)  # no variable is to blame


VARIABLES: list[tuple[str, Callable[[], object], object]] = [
    ("LOCK__CART__PRIORITY=7", lambda: Lock("cart").config.priority, 7),
    ("LOCK__CART__LOCK_DELAY=20s", lambda: Lock("cart").config.lock_delay, 20),
    ("AUTO_RENEW=off", lambda: Lock("a").config.auto_renew, False),
    ("SEMAPHORE__GPU__TTL=50s", lambda: dibs.Semaphore("gpu", 4).config.ttl, 50),
    ("RWLOCK__CART__TTL=50s", lambda: dibs.RWLock("cart").read().config.ttl, 50),
    ("TASKLOCK__NIGHTLY__MAX_HOLD=2h", lambda: dibs.TaskLock("nightly", 1).max_hold, 7200),
    ("TASKLOCK__A__MIN_HOLD=9s", lambda: dibs.TaskLock("a", env_load=False).min_hold, 1),
    ("LEADER__MAIN__RETRY=1s", lambda: dibs.LeaderElection("main").retry, 1),
    ("TTL=99s", lambda: dibs.LeaderElection("main").ttl, 15),
    # other names have no variables
    ("LOCK__ORDER:42__TTL=50", lambda: Lock("order:42").config.ttl, 30),
    ("LOCK__CART__TTL=50", lambda: Lock(b"cart").config.ttl, 30),
]


@pytest.mark.parametrize(("variable", "read", "value"), VARIABLES)
def test_a_variable_sets(
    monkeypatch: pytest.MonkeyPatch, variable: str, read: Callable[[], object], value: object
) -> None:
    name, _, text = variable.partition("=")
    monkeypatch.setenv(f"DIBS_{name}", text)
    assert read() == value


WRONG_VARIABLES: list[tuple[str, Callable[[], object]]] = [
    ("LOCK__CART__TTL=soon", lambda: Lock("cart")),
    ("TTL=0", lambda: Lock("cart")),
    ("LOCK__CART__AUTO_RENEW=maybe", lambda: Lock("cart")),
    ("LOCK__NIGHTLY__TTL=soon", lambda: Lock.wraps("nightly")(lambda: None)),
    ("LEADER__MAIN__TTL=5s", lambda: dibs.LeaderElection("main", retry=4)),
    ("ENV_LOAD=perhaps", lambda: Lock("a")),
]


@pytest.mark.parametrize(("variable", "make"), WRONG_VARIABLES)
def test_a_wrong_value_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, make: Callable[[], object]
) -> None:
    name, _, text = variable.partition("=")
    monkeypatch.setenv(f"DIBS_{name}", text)
    with pytest.raises(ValueError, match=f"^DIBS_{name} is '{text}'"):
        make()


def test_one_variable_is_for_one_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_LOCK__MY_CART__TTL", "7s")
    assert Lock("my-cart").config.ttl == 7
    with pytest.raises(ValueError, match=r"^DIBS_LOCK__MY_CART__… is for '.*' and for '"):
        Lock("my_cart")
    monkeypatch.setenv("DIBS_STORES__MY_OWN__URL", "memory://mine")
    assert dibs.sync.Client.named("my-own").url == "memory://mine"
    with pytest.raises(ValueError, match=r"is for 'my-own' and for 'my_own'"):
        dibs.sync.Client.named("my_own")


def test_a_switch_turns_all_of_it_off(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write('ttl = "9s"\n[leader.a]\nttl = 9')
    monkeypatch.setenv("DIBS_LOCK__A__WAIT", "1s")
    monkeypatch.setenv("DIBS_ENV_LOAD", "true")
    assert (Lock("a").config.ttl, Lock("a").config.wait) == (9, 1)
    monkeypatch.setenv("DIBS_ENV_LOAD", "false")
    assert Lock("a").config == LockConfig()
    assert dibs.LeaderElection("a").ttl == 15


# -- the file ---------------------------------------------------------------------------------------


def test_a_name_in_the_file_may_be_any_and_is_not_folded(write: Write) -> None:
    write('[lock."Order:{id}/ü"]\nttl = 50\n[lock.Cart]\nttl = 60\nnew = 1\n[lock.cart]\nttl = 7')
    assert Lock("Order:{id}/ü").config.ttl == 50
    assert Lock("Order:{id}/ü".encode()).config.ttl == 50
    assert Lock("cart").config.ttl == 7, "another section's trouble is not ours"
    assert Lock(b"\xff").config.ttl == 30


WRONG_FILES = [
    ('[lock.cart]\nttl = "soon"', "[lock.cart] ttl is 'soon': write it as \"30s\""),
    ("[lock.cart]\nttl = 0.01", "[lock.cart] ttl is 0.01: ttl is"),
    ("[lock.cart]\nttl = true", "[lock.cart] ttl is true: ttl is True: give seconds, a timed"),
    ('priority = "high"', "priority is 'high': write a whole number, such as 7"),
    ("[lock.cart]\ntll = 3", "[lock.cart] unknown setting tll. Did you mean ttl? (allowed"),
    ("[lokc.cart]\nttl = 3", "unknown setting lokc. Did you mean lock?"),
    ("lock = 3", "lock is 3: write a table for each name, such as [lock.cart]"),
    ("[stores.a]\nulr = 'redis://:secret@h'", "[stores.a] unknown setting ulr. Did"),
    ("[stores]\na = 'redis://:secret@h'", "[stores] a is 'redis://:***@h': write a table for"),
    ("[stores.Reports]\nurl = 'redis://h'", "[stores.Reports]: a store's name is 'Reports'"),
]


@pytest.mark.parametrize(("text", "told"), WRONG_FILES)
def test_a_wrong_setting_names_file_section_and_key(write: Write, text: str, told: str) -> None:
    path = write(text)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {told}")) as error:
        Lock("cart")
    assert "secret" not in str(error.value)


def test_several_wrong_settings_are_all_named(write: Write) -> None:
    path = write("[leader.main]\nttl = 5\nretry = 4")
    told = f"{path}: [leader.main] ttl is 5; {path}: [leader.main] retry is 4: retry is 4 s"
    with pytest.raises(UnsafeTiming, match=re.escape(told)):
        dibs.LeaderElection("main")


def test_a_file_that_is_missing_or_no_toml_is_an_error(
    monkeypatch: pytest.MonkeyPatch, write: Write, tmp_path: Path
) -> None:
    path = write("ttl = soon")
    no_toml = rf"DIBS_CONFIG names {path}, which is no TOML: .*line 1"
    with pytest.raises(NotConfigured, match=no_toml):
        Lock("cart")
    monkeypatch.setenv("DIBS_CONFIG", str(tmp_path / "none.toml"))
    for use in (lambda: Lock("cart"), dibs.sync.connect):
        with pytest.raises(NotConfigured, match=r"none\.toml, which can't be read: No such file"):
            use()


def test_only_the_named_file_is_read_and_only_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dibs.toml").write_text("ttl = 50")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIBS_CONFIG", "")
    assert Lock("cart").config.ttl == 30
    monkeypatch.setenv("DIBS_CONFIG", "dibs.toml")
    assert Lock("cart").config.ttl == 50
    (tmp_path / "dibs.toml").unlink()
    assert Lock("cart").config.ttl == 50


def test_the_file_names_the_default_store(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(f'url = "sqlite:///{tmp_path}/file.db"\ncall_timeout = "3s"')
    client = dibs.sync.connect()
    assert client.url.endswith("/file.db")
    assert client.session.thread_runtime().call_timeout == 3
    monkeypatch.setenv("DIBS_URL", f"sqlite:///{tmp_path}/variable.db")
    monkeypatch.setenv("DIBS_CONNECT_TIMEOUT", "4s")
    with dibs.sync.Lock("a"):
        runtime = dibs.sync.connect().session.thread_runtime()
        assert dibs.sync.connect().url.endswith("/variable.db")
    assert (runtime.connect_timeout, runtime.call_timeout) == (4, 3)


def test_a_wrong_url_names_its_place(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write('url = "mongodb://me:secret@h"\ncall_timeout = "soon"')
    with pytest.raises(ValueError, match=re.escape(f"{path}: call_timeout is 'soon': ")):
        dibs.sync.connect()
    path = write('url = "mongodb://me:secret@h"')
    with pytest.raises(NotConfigured, match=re.escape(f"{path}: url: 'mongodb://me:***")):
        dibs.sync.connect()
    monkeypatch.setenv("DIBS_URL", "mongodb://h")
    with pytest.raises(NotConfigured, match=r"^DIBS_URL: 'mongodb://h' is not the URL of a store"):
        dibs.sync.connect()


def test_every_setting_is_described() -> None:
    configs = (LockConfig, LeaderConfig, TaskLockConfig)
    keys = {*(key for config in configs for key in config._readers), *STORE_KEYS}
    page = (DOCS / "configuration.md").read_text("utf-8")
    table = page.partition("## Settings")[2].partition("## Stores")[0]
    assert [key for key in keys if f"`{key}`" not in table] == []


# -- values -----------------------------------------------------------------------------------------


def test_durations_are_seconds_texts_or_timedeltas() -> None:
    for text, value in ((" 3 s ", 3), ("7", 7), (0.5, 0.5), (timedelta(minutes=2), 120)):
        assert seconds(text) == value
    wrong: Any
    for wrong in (True, None, b"5s"):
        with pytest.raises(TypeError, match="give seconds, a timedelta, or a text"):
            seconds(wrong)
    for amount in (-1, nan, "", "5 minutes", "-3s", "1e3", "5M", "٣s", "3s4", timedelta(days=-1)):
        with pytest.raises(ValueError, match=" is "):
            seconds(amount)
    assert LockConfig(wait="forever") == LockConfig(wait=inf) == LockConfig(wait=None)


@given(st.floats(min_value=0, max_value=1e9), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_text_means_its_number_times_its_unit(number: float, unit: str) -> None:
    factor = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    text = f"{number:.6f}"
    assert seconds(text + unit) == pytest.approx(float(text) * factor)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"ttl": 0}, UnsafeTiming, r"at least 0\.1 s"),
    ({"ttl": True}, TypeError, "ttl is True"),
    ({"wait": -1}, ValueError, "can't be negative"),
    ({"wait": nan}, ValueError, "wait is NaN, which is no amount of time"),
    ({"max_hold": 0}, UnsafeTiming, "max_hold is 0"),
    ({"lock_delay": 601}, UnsafeTiming, r"cannot be ended early.* at most 600 s"),
    ({"priority": True}, TypeError, "priority is .*: give an int"),
    ({"note": 3}, TypeError, "note is .*: give a text"),
    ({"auto_renew": 1}, TypeError, "auto_renew is .*: give True or False"),
]


@pytest.mark.parametrize(("options", "kind", "told"), REFUSED)
def test_a_setting_that_makes_no_sense_is_refused_each_time(
    options: dict[str, Any], kind: type[Exception], told: str
) -> None:
    client: Any = dibs.connect("memory://")
    for remembered in ({"priority": 1}, {"auto_renew": True}, {"ttl": 1}):  # equal to what is wrong
        client.lock("a", **remembered)
    for make in (LockConfig, partial(Lock, "a"), partial(client.lock, "a")):
        with pytest.raises(kind, match=told):
            make(**options)


def test_pydantic_reports_what_a_config_says() -> None:
    with pytest.raises(ValidationError, match="ttl is 'soon': write it as"):
        TypeAdapter(LockConfig).validate_python({"ttl": "soon"})


# -- what a client remembers ------------------------------------------------------------------------


def test_another_client_reads_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_TTL", "20s")
    with dibs.sync.connect("memory://a") as client, dibs.sync.connect("memory://b") as later:
        assert client.lock("a").config.ttl == 20
        monkeypatch.setenv("DIBS_TTL", "40s")
        monkeypatch.setenv("DIBS_LOCK__B__TTL", "50s")
        assert [client.lock(name).config.ttl for name in "ab"] == [20, 20]
        assert client.lock("a", note="x").config.ttl == 20
        assert [later.lock(name).config.ttl for name in "ab"] == [40, 50]
        assert client.semaphore("a", 2).config.ttl == 40
