"""Names of any bytes, keys that never meet, ids that never show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.names import (
    KINDS,
    MAX_NAME,
    fingerprint,
    key_of,
    shown,
    split_key,
    wait_key,
)
from dibs.errors import InvalidName

kinds = st.sampled_from(KINDS)
names = st.binary(min_size=1, max_size=MAX_NAME)


@given(kinds, names)
def test_a_key_tells_kind_and_name(kind: str, name: bytes) -> None:
    assert split_key(key_of(kind, name)) == (kind, name)  # type: ignore[arg-type]


@given(kinds, names, kinds, names)
def test_different_resources_have_different_keys(
    kind: str, name: bytes, other: str, another: bytes
) -> None:
    same = (kind, name) == (other, another)
    assert (key_of(kind, name) == key_of(other, another)) == same  # type: ignore[arg-type]


@given(kinds, names, st.text("0123456789abcdef", min_size=24, max_size=24))
def test_no_resource_has_the_key_of_an_advert(kind: str, name: bytes, lease: str) -> None:
    assert wait_key(lease) != key_of(kind, name)  # type: ignore[arg-type]


@given(st.text(min_size=1, max_size=100))
def test_a_str_is_its_utf8(name: str) -> None:
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        with pytest.raises(InvalidName):
            key_of("lock", name)
    else:
        assert key_of("lock", name) == key_of("lock", raw)


@pytest.mark.parametrize("name", ["", b"", "x" * 513, "é" * 257, "\ud800"])
def test_a_name_that_is_none_is_refused(name: str | bytes) -> None:
    with pytest.raises(InvalidName):
        key_of("lock", name)
    with pytest.raises(ValueError, match="name"):
        key_of("lock", name)


@pytest.mark.parametrize("name", ["x", b"\x00", "a/b:c", "x" * 512, "\x1b[31m", b"\xff\xfe"])
def test_any_bytes_make_a_name(name: str | bytes) -> None:
    assert key_of("lock", name).startswith(b"lock:")


@given(names)
def test_what_is_shown_is_printable(name: bytes) -> None:
    assert shown(name).isprintable()


def test_a_name_is_shown_as_people_wrote_it() -> None:
    assert shown("größe/7".encode()) == "größe/7"
    assert shown(b"a\nb\xff") == "a\\nb\\xff"


@given(st.text(st.characters(codec="ascii"), min_size=22, max_size=22))
def test_a_fingerprint_does_not_show_the_id(lease_id: str) -> None:
    assert lease_id not in fingerprint(lease_id)
    assert len(fingerprint(lease_id)) == 24
    assert fingerprint(lease_id) == fingerprint(lease_id)
