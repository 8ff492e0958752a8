"""Messages as lists, and errors between processes: each comes back as it was, and what is none is refused."""

import copy
import inspect
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs import errors
from dibs.core.codec import decode_command, decode_notification, decode_reply, encode
from dibs.errors import DibsError, LeaseLost
from dibs.model import (
    Acquire,
    Command,
    Failed,
    Gone,
    Granted,
    Holder,
    Lost,
    Notification,
    Reply,
    Status,
)

KEY = b"lock:\xff"

st.register_type_strategy(float, st.floats(0, 1e12))
st.register_type_strategy(int, st.integers(0, 2**53 - 1))
st.register_type_strategy(bytes, st.just(KEY))


def everything(of: Any) -> st.SearchStrategy[Any]:
    return st.one_of([st.from_type(cls) for cls in get_args(of.__value__)])


def carried(message: Any) -> Any:
    """What a store makes of it: by way of JSON."""
    return json.loads(json.dumps(encode(message)))


@given(everything(Command))
def test_a_command_comes_back(command: Any) -> None:
    assert decode_command(carried(command), command.key) == command


@given(everything(Reply))
def test_a_reply_comes_back(reply: Any) -> None:
    if isinstance(reply, Status):
        reply = replace(reply, mine=())
    assert decode_reply(carried(reply), KEY) == reply


@given(st.from_type(Notification))
def test_a_notification_comes_back(sent: Notification) -> None:
    assert decode_notification(carried(sent), sent.key, sent.inbox) == sent


def test_the_list_begins_with_the_name() -> None:
    holder = Holder("f", "me", 7, 1, (0,), 0.5, 2.0)
    assert encode(Granted(7, (0, 2), 30.0)) == ["granted", 7, (0, 2), 30.0]
    assert encode(Status(KEY, 1, (holder,)))[:3] == [
        "status",
        1,
        [["f", "me", 7, 1, (0,), 0.5, 2.0, "", "held", "", ""]],
    ]


@pytest.mark.parametrize(
    "data",
    [
        [],
        ["acquire", 1],
        ["granted", 7, [0]],
        ["granted", 7.5, [0], 30.0],
        ["granted", 2**53, [0], 30.0],
        ["granted", True, [0], 30.0],
        ["granted", 7, "0", 30.0],
        ["granted", 7, [0], "30"],
        ["granted", 7, [0], 10**400],
        ["lost", "eaten", ""],
        ["failed", ["invalid"], ""],
        ["refused", "held", [["f"]], 0.0],
        [["gone"]],
    ],
)
def test_what_is_no_reply_is_refused(data: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"kind|fields|no |none"):
        decode_reply(data, KEY)


@pytest.mark.parametrize(("token", "slots"), [(-1, [0]), (7, [-1])])
def test_a_notification_has_no_negative_numbers(token: int, slots: list[int]) -> None:
    sent = Notification(KEY, "f", "here", "granted", 7, (0,), 1.0, 5.0)
    data = carried(sent)
    assert decode_notification(data, KEY, "here") == sent
    data[3:5] = token, slots
    with pytest.raises(ValueError, match="negative"):
        decode_notification(data, KEY, "here")


def test_numbers_may_come_as_either_sort() -> None:
    assert decode_reply(["granted", 7.0, [0.0], 30], KEY) == Granted(7, (0,), 30.0)
    assert decode_reply(["failed", "busy", "x"], KEY) == Failed("busy", "x")


def test_an_error_does_not_repeat_what_was_sent() -> None:
    """A broker answers with it, and a long answer would fail its workflow task."""
    for wrong in (["granted", "x" * 100_000, [], 1.0], ["x" * 100_000], ["lost", "x" * 100_000]):
        with pytest.raises(ValueError, match=r"kind|no |none") as raised:
            decode_reply(wrong, KEY)
        assert len(str(raised.value)) < 200


def test_fields_may_be_appended_later() -> None:
    """What an older release leaves out has its default, and what a newer one adds is left out."""
    assert decode_command(["acquire", "i", "me", 1.0], KEY) == Acquire(KEY, "i", "me", 1.0)
    assert decode_reply(["lost"], KEY) == Lost()
    assert decode_reply(["gone", "a word more"], KEY) == Gone()


# ---- errors and records between processes -------------------------------------------------------------

HOLDER = Holder("f", "host/1/x", 7, 1, (0,), 41.0, 19.0, "why")
ERRORS = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, DibsError)
]


def pickled[T](value: T) -> T:
    return pickle.loads(pickle.dumps(value))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("carry", [copy.copy, copy.deepcopy, pickled])
def test_an_error_arrives_whole(kind: type[DibsError], carry: Callable[[Any], Any]) -> None:
    error = kind("k is held", key=b"lock:k", holders=(HOLDER,), position=2, retry_after=1.5)
    error.add_note("and a note")
    arrived = carry(error)
    assert type(arrived) is kind
    assert (str(arrived), arrived.key, arrived.holders) == ("k is held", b"lock:k", (HOLDER,))
    assert (arrived.position, arrived.retry_after) == (2, 1.5)
    assert arrived.__notes__ == ["and a note"]


def test_a_loss_arrives_with_its_reason() -> None:
    assert pickled(LeaseLost("gone", reason="max_hold", key=b"k")).reason == "max_hold"


@given(everything(Command) | everything(Reply))
def test_a_record_arrives_equal(value: Any) -> None:
    assert (pickled(value), copy.deepcopy(value)) == (value, value)
    assert hash(pickled(value)) == hash(value)


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.AcquireTimeout, TimeoutError),
        (errors.BackendUnavailable, ConnectionError),
        (errors.Forbidden, PermissionError),
        (errors.InvalidName, ValueError),
        (errors.UnsafeTiming, ValueError),
    ],
)
def test_an_error_is_also_what_python_calls_it(kind: type, base: type) -> None:
    assert issubclass(kind, base)
    assert issubclass(kind, DibsError)
