"""Slips that get a helping answer: blocking in a loop, timeout=, words that no store promises."""

import uuid
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs.backends.memory import MemoryStore
from dibs.faces.described import PROMISES


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
