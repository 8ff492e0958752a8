"""Words that depend on how many there are."""

import pytest

from dibs.cli.move import _told
from dibs.cli.wording import counted


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 kills"), (1, "1 kill"), (2, "2 kills"), (1234, "1,234 kills")]
)
def test_one_is_no_more_than_one(count: int, told: str) -> None:
    assert counted(count, "kill") == told


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (1, "1 name is in use at the old place, until in 41 s unless it is renewed"),
        (2, "2 names are in use at the old place, until in 41 s unless they are renewed"),
    ],
)
def test_what_is_left_of_a_move(keys: int, told: str) -> None:
    seen = {"place": "ohio", "to": "frankfurt", "keys": keys, "ends_in": 41.2}
    assert _told("shop/", seen) == f"shop/ moves from ohio to frankfurt: {told}"
