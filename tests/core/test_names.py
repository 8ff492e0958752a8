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
from dibs.core.timing import (
    DRIFT,
    END_OF_TIME,
    MAX_CLAIM_TIMEOUT,
    MIN_TTL,
    TOMBSTONE_TTL,
    claim_timeout,
    heartbeat_interval,
    margin,
    next_token,
    renew_after,
    tombstone_ttl,
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


ttls = st.floats(MIN_TTL, 1e7)


@pytest.mark.parametrize(("ttl", "seconds"), [(0.1, 0.051), (1, 0.11), (30, 3.3), (600, 66)])
def test_the_margin_is_a_tenth_or_fifty_milliseconds_and_a_hundredth(
    ttl: float, seconds: float
) -> None:
    assert margin(ttl) == pytest.approx(seconds)


@given(ttls)
def test_a_lease_is_believed_for_a_while_and_never_as_long_as_the_store_keeps_it(
    ttl: float,
) -> None:
    assert 0 < ttl - margin(ttl) < ttl


@given(ttls)
def test_the_margin_allows_for_a_clock_that_runs_slow(ttl: float) -> None:
    believed = (ttl - margin(ttl)) * (1 + DRIFT)
    assert believed < ttl


@given(ttls)
def test_two_renewals_are_due_before_the_deadline(ttl: float) -> None:
    if ttl >= 0.5:
        assert 2 * renew_after(ttl) < ttl - margin(ttl)


@given(ttls)
def test_a_claim_window_is_five_seconds_or_half_of_the_ttl(ttl: float) -> None:
    assert claim_timeout(ttl) == min(MAX_CLAIM_TIMEOUT, ttl if ttl < 0.5 else max(ttl / 2, 0.5))
    assert 2 * heartbeat_interval(claim_timeout(ttl)) < claim_timeout(ttl)


@given(st.floats(0.001, 1e4))
def test_an_id_is_remembered_for_two_calls_and_a_minute_at_least(timeout: float) -> None:
    assert tombstone_ttl(timeout) == max(TOMBSTONE_TTL, 2 * timeout)


tokens = st.integers(0, 2**53 - 1)


@given(tokens, st.integers(-(2**62), 2**62), tokens)
def test_a_token_is_above_the_last_and_the_floor(last: int, stamp: int, floor: int) -> None:
    token = next_token(last, stamp, floor)
    assert token > last
    assert token > floor
    assert token in (last + 1, floor + 1, stamp)


@given(st.integers(max_value=END_OF_TIME) | st.integers(END_OF_TIME + 1))
def test_a_stamp_past_the_year_2200_is_ignored(stamp: int) -> None:
    token = next_token(7, stamp, 0)
    assert token == (stamp if 8 < stamp <= END_OF_TIME else 8)


def test_tokens_stay_below_what_a_double_holds_exactly() -> None:
    assert next_token(0, END_OF_TIME, 0) < 2**53
