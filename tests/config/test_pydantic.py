"""Configs are plain dataclasses: other libraries' settings are made of them, and plain mappings are."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

import dibs
import dibs.sync
from dibs import LeaderConfig, LockConfig, TaskLockConfig

NIGHTLY = TaskLockConfig(min_hold="1m", max_hold="10m")


class Shop(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SHOP_", env_nested_delimiter="__")

    cart: LockConfig = LockConfig(ttl="10s")
    leader: LeaderConfig = LeaderConfig()
    nightly: TaskLockConfig = NIGHTLY
    orders: dict[str, LockConfig] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, TomlConfigSettingsSource(settings_cls, "shop.toml")


@pytest.fixture(autouse=True)
def in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_variables_and_from_toml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shop = Shop()
    assert (shop.cart, shop.leader, shop.nightly) == (LockConfig(ttl=10), LeaderConfig(), NIGHTLY)
    (tmp_path / "shop.toml").write_text(
        '[cart]\nttl = "1m"\nwait = 3\n[nightly]\nmin_hold = 5\nmax_hold = "1h"\n'
        '[orders.large]\nttl = "5m"\n'
    )
    monkeypatch.setenv("SHOP_CART__TTL", "2m")
    monkeypatch.setenv("SHOP_CART__PRIORITY", "7")
    monkeypatch.setenv("SHOP_CART__AUTO_RENEW", "off")
    monkeypatch.setenv("SHOP_LEADER__RETRY", "1s")
    monkeypatch.setenv("DIBS_TTL", "99s")  # not for a config
    shop = Shop()
    assert shop.cart == LockConfig(ttl=120, wait=3, priority=7, auto_renew=False)
    assert shop.leader == LeaderConfig(retry=1)
    assert shop.nightly == TaskLockConfig(min_hold=5, max_hold=3600)
    assert shop.orders["large"] == LockConfig(ttl=300)
    assert dibs.Lock.from_config("cart", shop.cart).config.ttl == 120
    assert dibs.TaskLock.from_config("nightly", shop.nightly).max_hold == 3600
    assert dibs.LeaderElection.from_config("main", shop.leader).retry == 1


@pytest.mark.parametrize(
    ("variable", "value", "where", "told"),
    [
        ("CART__TTL", "soon", "cart", "ttl is 'soon': write it as \"30s\""),
        ("CART__TTL", "0.01", "cart", "ttl is 0.01 s: it must be finite and at least 0.1 s"),
        ("CART__WAIT", "-1", "cart", "wait is '-1': it can't be negative"),
        ("CART__PRIORITY", "high", "cart.priority", "should be a valid integer"),
        ("CART__AUTO_RENEW", "maybe", "cart.auto_renew", "should be a valid boolean"),
        ("CART__TLL", "3", "cart.tll", "Unexpected keyword argument"),
        ("LEADER__RETRY", "20s", "leader", "retry is 20 s, and a leader steps down"),
    ],
)
def test_an_error_names_its_place(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, where: str, told: str
) -> None:
    monkeypatch.setenv(f"SHOP_{variable}", value)
    with pytest.raises(ValidationError) as error:
        Shop()
    (found,) = error.value.errors()
    assert ".".join(map(str, found["loc"])) == where
    assert told in found["msg"]


def test_a_plain_mapping_makes_a_config() -> None:
    found: dict[str, Any] = {"ttl": "2m", "wait": None, "auto_renew": False}
    assert LockConfig(**found) == LockConfig(ttl=120, auto_renew=False)
    misspelt: dict[str, Any] = {"tll": 3}
    with pytest.raises(TypeError, match="unexpected keyword argument 'tll'"):
        LockConfig(**misspelt)
