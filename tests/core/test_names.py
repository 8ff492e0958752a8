"""Names of any bytes, keys that never meet, ids that never show; durations and tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.names import KINDS, MAX_NAME, key_of, shown, split_key, wait_key
from dibs.core.timing import (
    DRIFT,
    END_OF_TIME,
    MIN_TTL,
    claim_timeout,
    heartbeat_interval,
    margin,
    next_token,
    renew_after,
    trusted,
)
from dibs.errors import InvalidName

names = st.binary(min_size=1, max_size=MAX_NAME)
resources = st.tuples(st.sampled_from(KINDS), names)


@given(resources, resources, st.text("0123456789abcdef", min_size=24, max_size=24))
def test_different_resources_have_different_keys(
    one: tuple[str, bytes], other: tuple[str, bytes], lease: str
) -> None:
    key, another = (key_of(kind, name) for kind, name in (one, other))  # type: ignore[arg-type]
    assert split_key(key) == one
    assert (key == another) == (one == other)
    assert key != wait_key(lease), "which is the key of no resource"


def test_a_name_has_1_to_512_bytes() -> None:
    for name in ("x", b"\x00", "a/b:c", "x" * 512, "\x1b[31m", b"\xff\xfe"):
        assert key_of("lock", name).startswith(b"lock:")
    assert key_of("lock", "ü") == key_of("lock", "ü".encode())
    for none in ("", b"", "x" * 513, "é" * 257, "\ud800"):
        with pytest.raises(InvalidName, match=r"name|Unicode"):
            key_of("lock", none)
    with pytest.raises(TypeError, match="a name is a str or bytes, not int"):
        key_of("lock", 7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kind is 'mutex'"):
        key_of("mutex", "x")  # type: ignore[arg-type]


@given(names)
def test_a_name_is_shown_without_what_cannot_be_printed(name: bytes) -> None:
    assert shown(name).isprintable()
    assert shown("größe/7".encode()) == "größe/7"
    assert shown(b"a\nb\xff") == "a\\nb\\xff"
    assert split_key(b"\xff:" + name) == ("\ufffd", name), "a key of somebody else"


@given(st.floats(MIN_TTL, 1e7))
def test_durations_leave_time_for_a_second_try(ttl: float) -> None:
    assert 0 < trusted(ttl) * (1 + DRIFT) < ttl, "also by a clock that runs slow"
    assert ttl < 0.5 or 2 * renew_after(ttl) < trusted(ttl)
    assert 2 * heartbeat_interval(claim_timeout(ttl)) < claim_timeout(ttl) <= ttl


@pytest.mark.parametrize(
    ("ttl", "at_the_end", "to_claim"),
    [(0.1, 0.051, 0.1), (0.6, 0.066, 0.5), (1, 0.11, 0.5), (8, 0.88, 4), (600, 66, 5)],
)
def test_the_margin_and_the_claim_timeout(ttl: float, at_the_end: float, to_claim: float) -> None:
    assert margin(ttl) == pytest.approx(at_the_end)
    assert claim_timeout(ttl) == pytest.approx(to_claim)


tokens = st.integers(0, 2**53 - 1)


@given(tokens, st.integers(-(2**62), 2**62), tokens)
def test_a_token_is_above_the_last_and_the_floor(last: int, stamp: int, floor: int) -> None:
    believable = [stamp] if stamp <= END_OF_TIME else []
    assert next_token(last, stamp, floor) == max([last + 1, floor + 1, *believable])
    assert next_token(0, END_OF_TIME, 0) == END_OF_TIME < 2**53, "a double holds it exactly"
