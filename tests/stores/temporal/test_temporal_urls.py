"""What a Temporal URL says, over the profiles of Temporal's own settings; and what it must not tell."""

from pathlib import Path

import pytest

from dibs.errors import NotConfigured
from dibs.stores.registry import store_for
from dibs.stores.temporal.ids import QUEUE
from dibs.stores.temporal.url import read_url

SECRET = "s3cr3t-k3y"

PROFILES = """
[profile.default]
address = "from-file:7233"
namespace = "filed"
api_key = "of-the-file"

[profile.prod]
address = "prod.example:7233"
namespace = "production"
"""


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine's or this user's counts."""
    for name in ("ADDRESS", "NAMESPACE", "API_KEY", "PROFILE", "TASK_QUEUE", "TLS"):
        monkeypatch.delenv(f"TEMPORAL_{name}", raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))


@pytest.fixture
def profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A settings file, where Temporal looks for it."""
    file = tmp_path / "temporal.toml"
    file.write_text(PROFILES)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))
    return file


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("temporal://", "localhost:7233/default"),
        ("temporal://example", "example:7233/default"),
        ("temporal://example:7300/team", "example:7300/team"),
        ("temporal://[::1]:7300/a.b-c", "[::1]:7300/a.b-c"),
        ("temporal:///team", "localhost:7233/team"),
        ("temporal://example/a%20b", "example:7233/a b"),
    ],
)
def test_where_it_is(url: str, place: str) -> None:
    assert str(read_url(url).target()) == place


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("temporal:/x", "looks like temporal://host:7233/namespace"),
        ("temporal://host:0/x", "'host:0' is no host:port"),
        ("temporal://host:port/x", "'host:port' is no host:port"),
        ("temporal://:7233/x", "':7233' is no host:port"),
        ("temporal://host/a/b", "'a/b' is no namespace"),
        (f"temporal://me:{SECRET}@host/x", "has no user and no password; for an API key set"),
    ],
)
def test_what_makes_no_sense_is_told(url: str, told: str) -> None:
    with pytest.raises(NotConfigured) as error:
        read_url(url)
    assert told in str(error.value)
    assert SECRET not in str(error.value)


def test_an_api_key_is_never_shown() -> None:
    store = store_for(f"temporal://host/x?api_key={SECRET}&task_queue=q")
    assert store.url == "temporal://host/x?api_key=***&task_queue=q"
    settings = read_url(f"temporal://host/x?api_key={SECRET}")
    assert SECRET not in repr(settings) + repr(settings.target())
    assert settings.target().options == {"api_key": SECRET, "tls": True}


def test_the_queue_is_the_urls_or_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_url("temporal://").task_queue == QUEUE
    monkeypatch.setenv("TEMPORAL_TASK_QUEUE", "ours")
    assert read_url("temporal://").task_queue == "ours"
    assert read_url("temporal://?task_queue=mine").task_queue == "mine"


def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "env:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "env-space")
    monkeypatch.setenv("TEMPORAL_API_KEY", SECRET)
    assert str(read_url("temporal://").target()) == "env:7233/env-space"
    assert str(read_url("temporal://host/own").target()) == "host:7233/own"
    assert read_url("temporal://host/own").target().options["api_key"] == SECRET
    assert read_url("temporal://host/own?tls=false").target().options["tls"] is False


@pytest.mark.usefixtures("profiles")
def test_a_profile_of_temporals_own_file() -> None:
    assert str(read_url("temporal://").target()) == "from-file:7233/filed"
    assert str(read_url("temporal://?profile=prod").target()) == "prod.example:7233/production"
    assert str(read_url("temporal:///other?profile=prod").target()) == "prod.example:7233/other"


@pytest.mark.usefixtures("profiles")
def test_a_key_of_the_file_goes_nowhere_else() -> None:
    assert read_url("temporal://").target().options["api_key"] == "of-the-file"
    assert "api_key" not in read_url("temporal://elsewhere/x").target().options
    named = read_url("temporal://elsewhere/x?profile=default")
    assert named.target().options["api_key"] == "of-the-file"


@pytest.mark.usefixtures("profiles")
def test_a_profile_that_is_not_there_is_told() -> None:
    with pytest.raises(NotConfigured, match="temporal config list"):
        read_url("temporal://?profile=nope").target()


def test_certificates_are_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_TLS_SERVER_NAME", "t.example")
    monkeypatch.setenv("TEMPORAL_TLS_SERVER_CA_CERT_DATA", "ca")
    tls = read_url("temporal://h/x").target().options["tls"]
    assert (tls.server_root_ca_cert, tls.domain) == (b"ca", "t.example")
