"""Messages as lists: each comes back as it was, and what is none is refused."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.codec import decode_command, decode_notification, decode_reply, encode
from dibs.model import Acquire, Command, Failed, Gone, Granted, Lost, Notification, Reply, Status

KEY = b"lock:\xff"

st.register_type_strategy(float, st.floats(0, 1e12))
st.register_type_strategy(int, st.integers(0, 2**53 - 1))
st.register_type_strategy(bytes, st.just(KEY))


def any_of(union: Any) -> st.SearchStrategy[Any]:
    return st.one_of([st.from_type(cls) for cls in get_args(union.__value__)])


def carried(message: Any) -> Any:
    """What a store makes of it: by way of JSON."""
    return json.loads(json.dumps(encode(message)))


@given(any_of(Command), any_of(Reply), st.from_type(Notification))
def test_a_message_comes_back(command: Any, reply: Any, sent: Notification) -> None:
    assert decode_command(carried(command), command.key) == command
    if isinstance(reply, Status):
        reply = replace(reply, mine=())
    assert decode_reply(carried(reply), KEY) == reply
    assert decode_notification(carried(sent), sent.key, sent.inbox) == sent


def test_numbers_may_come_as_either_sort_and_fields_may_be_appended_later() -> None:
    """What an older release leaves out has its default, and what a newer one adds is left out."""
    assert decode_reply(["granted", 7.0, [0.0], 30], KEY) == Granted(7, (0,), 30.0)
    assert decode_reply(["failed", "busy", "x"], KEY) == Failed("busy", "x")
    assert decode_command(["acquire", "i", "me", 1.0], KEY) == Acquire(KEY, "i", "me", 1.0)
    assert decode_reply(["lost"], KEY) == Lost()
    assert decode_reply(["gone", "a word more"], KEY) == Gone()


LONG = "x" * 100_000


@pytest.mark.parametrize(
    "data",
    [
        [],
        [LONG],
        [["gone"]],
        ["acquire", 1],
        ["granted", 7, [0]],
        ["granted", 7.5, [0], 30.0],
        ["granted", 2**53, [0], 30.0],
        ["granted", -(2.0**53), [0], 30.0],
        ["granted", True, [0], 30.0],
        ["granted", LONG, [0], 30.0],
        ["granted", 7, "0", 30.0],
        ["granted", 7, [0], "30"],
        ["granted", 7, [0], 10**400],
        ["lost", "eaten", ""],
        ["lost", LONG],
        ["failed", ["invalid"], ""],
        ["refused", "held", [["f"]], 0.0],
    ],
    ids=lambda data: str(data)[:30],
)
def test_what_is_no_reply_is_refused_in_few_words(data: list[Any]) -> None:
    """A broker answers with the error, and a long answer would fail its workflow task."""
    with pytest.raises(ValueError, match=r"kind|fields|no |none") as raised:
        decode_reply(data, KEY)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(("token", "slots"), [(-1, [0]), (7, [-1])])
def test_a_notification_has_no_negative_numbers(token: int, slots: list[int]) -> None:
    data = carried(Notification(KEY, "f", "here", "granted", 7, (0,), 1.0, 5.0))
    data[3:5] = token, slots
    with pytest.raises(ValueError, match="negative"):
        decode_notification(data, KEY, "here")
