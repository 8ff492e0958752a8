"""A misspelt setting of the service is refused, wherever it stands, with the one that is meant."""

from pathlib import Path

import pytest

from dibs.errors import NotConfigured
from dibs.server.config import read_config

PREFIX = "DIBS_SERVER_"
PASSWORD = "hunter2"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            f'laeses = "redis://:{PASSWORD}@x"',
            "unknown setting laeses. Did you mean leases?",
        ),
        ("port = 80", "unknown setting port. Did you mean listen?"),
        ("xyzzy = 1", "unknown setting xyzzy"),
        (
            "[limits]\nmax_tll = 5",
            "[limits] unknown setting max_tll. Did you mean max_ttl?",
        ),
        (
            '[[placement]]\nname = "a"\nurl = "memory://a"\nregoin = "DE"',
            "[placement] unknown setting regoin. Did you mean region?",
        ),
        ("limits = 5", "at `$.limits`"),
        ("placement = 5", "at `$.placement`"),
        ("placement = [5]", "at `$.placement[0]`"),
    ],
)
def test_in_the_file(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "server.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(NotConfigured) as caught:
        read_config(str(file), {}, {})
    assert str(caught.value).startswith(f"{file}: ")
    assert told in str(caught.value)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LAESES", "LEASES"),
        ("leases", "LEASES"),
        ("STORE", "LEASES"),
        ("PORT", "LISTEN"),
        ("LIMITS", "LIMITS__MAX_ID"),
        ("LIMIT__MAX_TTL", "LIMITS__MAX_TTL"),
        ("LIMITS__MAX_TLL", "LIMITS__MAX_TTL"),
        ("LIMITS_MAX_TTL", "LIMITS__MAX_TTL"),
        ("CONFIGURATION", "CONFIG"),
        ("XYZZY", None),
        ("PLACEMENT", "PLACEMENT_FRESH"),
    ],
)
def test_in_the_environment(name: str, meant: str | None) -> None:
    with pytest.raises(NotConfigured) as caught:
        read_config(None, {}, {PREFIX + name: PASSWORD})
    more = f". Did you mean {PREFIX}{meant}?" if meant else ""
    assert str(caught.value) == f"unknown setting {PREFIX}{name}{more}"


def test_what_kubernetes_makes_of_a_service_is_left_alone() -> None:
    """Else a Service that is called dibs-server would keep servers from starting."""
    address = "tcp://10.0.0.1:5327"
    links = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "5327",
        "SERVICE_PORT_HTTPS": "5327",
        "PORT": address,
        "PORT_5327_TCP": address,
        "PORT_5327_TCP_PROTO": "tcp",
        "PORT_5327_TCP_PORT": "5327",
        "PORT_5327_TCP_ADDR": "10.0.0.1",
        "METRICS_PORT": address,
        "METRICS_SERVICE_HOST": "10.0.0.1",
    }
    found = read_config(None, {}, {PREFIX + name: value for name, value in links.items()})
    assert found == read_config(None, {}, {})


def test_a_limit_that_is_fixed() -> None:
    with pytest.raises(NotConfigured, match="max_batch is told to clients, and can't be changed"):
        read_config(None, {}, {f"{PREFIX}LIMITS__MAX_BATCH": "9"})
    assert read_config(None, {}, {f"{PREFIX}LIMITS__MAX_BATCH": "512"}).limits.max_batch == 512


def test_variables_of_the_library_are_none_of_the_service() -> None:
    assert read_config(None, {}, {"DIBS_SERVE": "x", "DIBS_TTL": "5s"}) == read_config(None, {}, {})


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("METRICS", "perhaps", "give true or false"),
        ("DRAIN_DELAY", "-3", "drain_delay is '-3': it can't be negative"),
        ("LIMITS__MIN_TTL", "x", "limits.min_ttl is 'x': write it as"),
        ("LIMITS__WAITERS", "many", "give a whole number"),
        ("LOG_FORMAT", "xml", "give one of json, text"),
    ],
)
def test_what_a_variable_has_to_be_is_told(variable: str, value: str, told: str) -> None:
    with pytest.raises(NotConfigured) as caught:
        read_config(None, {}, {PREFIX + variable: value})
    assert str(caught.value).startswith(f"{PREFIX}{variable}: ")
    assert told in str(caught.value)


def test_what_a_setting_of_the_file_has_to_be_is_told(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('metrics = "perhaps"', "utf-8")
    with pytest.raises(NotConfigured) as caught:
        read_config(str(file), {}, {})
    assert str(caught.value) == f"{file}: metrics: give true or false"
