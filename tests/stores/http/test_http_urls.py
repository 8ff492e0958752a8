"""What URLs say, where the key is found, and what is refused, never with a key in it."""

from pathlib import Path

import pytest

from dibs import connect
from dibs.errors import NotConfigured
from dibs.stores.http.url import FILE_VARIABLE, VARIABLE, read_url
from dibs.stores.redact import redacted
from dibs.stores.registry import store_for

SECRET = "dibs_4711_s3cret-S3CRET_s3cret"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)


def key_of(url: str) -> str | None:
    found = read_url(url).find_key()
    return None if found is None else found.secret


@pytest.mark.parametrize(
    ("url", "host", "port", "base", "authority", "tls"),
    [
        ("https://locks.example", "locks.example", 443, "", "locks.example", True),
        ("https://locks.example/", "locks.example", 443, "", "locks.example", True),
        ("https://h:8443/a/b/", "h", 8443, "/a/b", "h:8443", True),
        ("https://[fd00::1]:8443", "fd00::1", 8443, "", "[fd00::1]:8443", True),
        ("http://127.0.0.1:5327", "127.0.0.1", 5327, "", "127.0.0.1:5327", False),
        ("http://127.8.0.1", "127.8.0.1", 80, "", "127.8.0.1", False),
        ("http://[::1]:80", "::1", 80, "", "[::1]", False),
        ("http://localhost:1", "localhost", 1, "", "localhost:1", False),
        ("http://h:1?insecure=true", "h", 1, "", "h:1", False),
    ],
)
def test_where_it_leads(
    url: str, host: str, port: int, base: str, authority: str, tls: bool
) -> None:
    found = read_url(url)
    assert (found.host, found.port, found.base) == (host, port, base)
    assert found.authority == authority
    assert (found.tls is not None) == tls


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://locks.example", "in clear: write https://"),
        ("http://localhost.example", "in clear"),
        ("http://127.0.0.1.example", "in clear"),
        ("https://h?insecure=true", "cafile=FILE"),
        ("http://localhost?cafile=x", "cafile= is for https"),
        ("https://", "looks like"),
        ("https://h:99999", "can't be read"),
        ("https://h:port", "can't be read"),
        ("https://h/v1", "leave out /v1"),
        ("https://h/v1/", "leave out /v1"),
        ("https://h/ü", "%XX"),
        ("https://h#a", "looks like"),
        ("https://h/a b", "blank"),
        ("https://h/a\r\nx: y", "control character"),
        (f"https://{SECRET}@h?key_file=x", "given twice"),
    ],
)
def test_what_is_refused(url: str, told: str) -> None:
    with pytest.raises(NotConfigured, match="http") as refusal:
        store_for(url)
    assert told in str(refusal.value)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("login", [SECRET, f":{SECRET}", f"user:{SECRET}"])
def test_a_key_in_the_url_is_found_and_never_shown(login: str) -> None:
    url = f"https://{login}@h"
    assert key_of(url) == SECRET
    store = store_for(url)
    assert store.url == "https://***@h"
    assert SECRET not in repr(vars(store)) + redacted(url)
    assert SECRET not in repr(connect(url))


def test_a_key_with_other_characters_is_escaped() -> None:
    assert key_of("https://:a%2Fb%40c@h") == "a/b@c"


def test_where_the_key_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = tmp_path / "key", tmp_path / "other"
    file.write_text("from-the-file\n")
    other.write_text("from-the-other")
    assert key_of("https://h") is None
    monkeypatch.setenv(FILE_VARIABLE, str(other))
    assert key_of("https://h") == "from-the-other"
    monkeypatch.setenv(VARIABLE, "from-the-variable")
    assert key_of("https://h") == "from-the-variable"
    assert key_of(f"https://h?key_file={file}") == "from-the-file"
    assert key_of("https://from-the-url@h") == "from-the-url"


def test_a_new_key_in_the_file_is_found(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("one")
    settings = read_url(f"https://h?key_file={file}")
    file.write_text("two")
    found = settings.find_key()
    assert found is not None
    assert found.secret == "two"


@pytest.mark.parametrize("text", ["", "two words", "line\nbreak", "schlüssel", "a\0b"])
def test_what_is_no_key_is_refused_unseen(text: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(NotConfigured, match=r"is empty|is no API key") as refusal:
        key_of(f"https://h?key_file={file}")
    assert not text or text not in str(refusal.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured, match="can't be read: No such file"):
        key_of(f"https://h?key_file={tmp_path}/nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(NotConfigured, match="it is no text"):
        key_of(f"https://h?key_file={tmp_path}/binary")


def test_a_ca_that_can_t_be_read(tmp_path: Path) -> None:
    tls = read_url(f"https://h?cafile={tmp_path}/nothing").tls
    assert tls is not None
    with pytest.raises(
        NotConfigured, match=f"^https://h.* can't be set up with {tmp_path}/nothing"
    ):
        tls()
