"""What a duration may be, and which timing is refused."""

from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs import LockConfig, UnsafeTiming
from dibs.config import optional_seconds, safe_ttl, seconds
from dibs.sync import Lock


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
