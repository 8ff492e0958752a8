"""Slips that get a helping answer: blocking in a loop, timeout=, words that no store promises."""

import copy
import pickle
import uuid
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, DibsError, LeaseLost
from dibs.locks.base import PROMISES
from dibs.stores.memory import MemoryStore
from dibs.sync import connect


@pytest.fixture
def blocking() -> dibs.sync.Client:
    return dibs.sync.connect(f"memory://{uuid.uuid4()}")


@pytest.mark.parametrize(
    "call",
    [
        lambda lock: lock.acquire(),
        lambda lock: lock.try_acquire(),
        lambda lock: lock.status(),
        lambda lock: lock.locked(),
        lambda lock: lock.revoke(reason="a test"),
    ],
    ids=["acquire", "try_acquire", "status", "locked", "revoke"],
)
async def test_a_blocking_primitive_in_a_running_loop(
    blocking: dibs.sync.Client, call: Any
) -> None:
    for made in (blocking.lock("a"), blocking.semaphore("a", 2)):
        kind = type(made).__name__
        with pytest.raises(RuntimeError, match=f"`from dibs import {kind}` and write `async"):
            call(made)


async def test_a_blocking_client_in_a_running_loop(blocking: dibs.sync.Client) -> None:
    for call in (
        lambda: blocking.status("a"),
        lambda: blocking.revoke("a", reason="a test"),
        lambda: list(blocking.list()),
        lambda: blocking.attach("handle"),
    ):
        with pytest.raises(RuntimeError, match="`from dibs import connect`, and await"):
            call()


def test_what_a_loop_must_not_do_a_thread_may(blocking: dibs.sync.Client) -> None:
    with blocking.lock("a"):
        assert blocking.lock("a").locked()
        assert blocking.lock("a").status().last_token == blocking.status("a").last_token
        assert blocking.lock("a").revoke(reason="a test") == 1


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
def test_a_word_that_no_store_promises_is_told_at_construction(module: Any) -> None:
    for require in ({"durble"}, "durble", ["clock", "durble"]):
        with pytest.raises(
            ValueError, match=r"names 'durble', which no store .*durable.*power-loss"
        ):
            module.Lock("a", require=require)
        with pytest.raises(ValueError, match="durble"):
            module.Semaphore.from_config("a", 2, dibs.LockConfig(), require=require)
    assert module.Lock("a", require=iter(PROMISES)).key == b"lock:a"


def test_every_word_that_a_store_promises_is_known() -> None:
    assert MemoryStore("memory://").capabilities.names() <= PROMISES
    everything = dibs.Capabilities(
        scope="cluster", durable=True, survives=frozenset({"crash", "reboot", "power-loss"})
    )
    assert everything.names() == PROMISES


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
