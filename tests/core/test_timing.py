"""How durations follow from a ttl, and tokens from what was and what the wall clock says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.timing import (
    BURIAL,
    DRIFT,
    END_OF_TIME,
    MIN_TTL,
    WINDOW,
    burial,
    claim_window,
    margin,
    next_token,
    renew_after,
    sign_of_life_after,
)

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
    assert claim_window(ttl) == min(WINDOW, ttl if ttl < 0.5 else max(ttl / 2, 0.5))
    assert 2 * sign_of_life_after(claim_window(ttl)) < claim_window(ttl)


@given(st.floats(0.001, 1e4))
def test_an_id_is_remembered_for_two_calls_and_a_minute_at_least(timeout: float) -> None:
    assert burial(timeout) == max(BURIAL, 2 * timeout)


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
