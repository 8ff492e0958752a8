"""Errors are what people expect them to be, and pass between processes whole."""

import copy
import pickle
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, DibsError, LeaseLost
from dibs.sync import connect

ERRORS = [
    value
    for name in vars(dibs)["__all__"]
    if isinstance(value := getattr(dibs, name), type) and issubclass(value, DibsError)
]


def test_they_can_be_caught_as_what_they_are() -> None:
    for error, builtin in {
        "AcquireTimeout": TimeoutError,
        "BackendUnavailable": ConnectionError,
        "Forbidden": PermissionError,
        "InvalidName": ValueError,
        "UnsafeTiming": ValueError,
    }.items():
        assert issubclass(getattr(dibs, error), builtin)
    assert len(ERRORS) >= 13


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_all_of_them_can_be_pickled(kind: type[DibsError], protocol: int) -> None:
    error = kind("what happened", key=b"lock:a", position=3, retry_after=1.5)
    error.add_note("a note")
    for copied in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(copied) is kind
        assert str(copied) == "what happened"
        assert (copied.key, copied.position, copied.retry_after) == (b"lock:a", 3, 1.5)
        assert copied.__notes__ == ["a note"]


def test_a_real_one_keeps_its_holders() -> None:
    client: Any = connect(f"memory://{uuid4()}")
    with client.lock("a", label="me"):
        with pytest.raises(AcquireTimeout) as caught:
            connect(client.url).lock("a").acquire(wait=0)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert copied.holders == caught.value.holders
    assert copied.holders[0].owner.endswith("/me")


def test_the_reason_of_a_loss_is_kept() -> None:
    lost = pickle.loads(pickle.dumps(LeaseLost("gone", reason="revoked", key=b"lock:a")))
    assert (lost.reason, lost.key) == ("revoked", b"lock:a")


@pytest.mark.parametrize("module", [dibs, dibs.sync])
def test_what_is_no_client_is_told(module: Any) -> None:
    with pytest.raises(dibs.NotConfigured, match=r"client= is a builtins\.dict.*temporalio"):
        module.connect(client={})
    with pytest.raises(TypeError, match="a URL and client="):
        module.connect("memory://", client=object())
    with pytest.raises(TypeError, match="given dict: give the URL of a store"):
        module.connect({"password": "secret"})
