"""What travels between processes arrives as it was sent."""

import copy
import inspect
import pickle

import pytest

from dibs import errors, model
from dibs.errors import DibsError, LeaseLost
from dibs.model import Capabilities, Granted, Holder, Lost, Notification, Queued, Status

HOLDER = Holder("f", "host/1/x", 7, 1, (0,), 41.0, 19.0, "why")
ERRORS = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, DibsError)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "carry", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_an_error_arrives_whole(kind: type[DibsError], carry: type) -> None:
    error = kind("k is held", key=b"lock:k", holders=(HOLDER,), position=2, retry_after=1.5)
    error.add_note("and a note")
    arrived = carry(error)
    assert type(arrived) is kind
    assert str(arrived) == "k is held"
    assert (arrived.key, arrived.holders) == (b"lock:k", (HOLDER,))
    assert (arrived.position, arrived.retry_after) == (2, 1.5)
    assert arrived.__notes__ == ["and a note"]


def test_a_loss_arrives_with_its_reason() -> None:
    arrived = pickle.loads(pickle.dumps(LeaseLost("gone", reason="max_hold", key=b"k")))
    assert arrived.reason == "max_hold"


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


@pytest.mark.parametrize(
    "value",
    [
        Granted(1, (0,), 30),
        Lost("revoked", "why"),
        Queued(1, 2.5, 3.0),
        Status(b"k", 1, (HOLDER,)),
        Notification(b"k", "f", "inbox", "granted", 1, (0,), 2.0, 5.0),
        model.Acquire(b"k", "a", "o", 30, units=2),
        Capabilities("host", survives=frozenset({"crash"})),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_record_arrives_equal(value: object) -> None:
    arrived = pickle.loads(pickle.dumps(value))
    assert arrived == value
    assert hash(arrived) == hash(value)
    assert copy.deepcopy(value) == value


def test_capabilities_name_what_a_store_can_promise() -> None:
    host = Capabilities("host", durable=True, notifies=False, survives=frozenset({"kill"}))
    assert host.names() == {"process", "host", "clock", "durable", "fenced", "kill"}
    assert Capabilities("cluster").names() >= {"process", "host", "cluster"}
