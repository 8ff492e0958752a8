"""Clients: what they are told, what is theirs to close, and how a resource is named to them."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import LockConfig, Status


@pytest.fixture
def client() -> Iterator[dibs.sync.Client]:
    with dibs.sync.connect(f"memory://{uuid.uuid4()}") as client:
        yield client


# -- the default store --------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
def test_options_without_a_url_are_refused(module: Any) -> None:
    with pytest.raises(TypeError, match=r"connect_timeout and no URL: options belong to a URL"):
        module.connect(connect_timeout=1)
    with pytest.raises(TypeError):
        module.connect("memory://", conect_timeout=1)


def test_closing_a_client_of_the_default_store_leaves_it_open(
    client: dibs.sync.Client,
) -> None:
    with dibs.override(client), dibs.sync.Lock("a") as lease:
        with dibs.sync.connect() as shared:
            assert shared.status("a").holders[0].token == lease.token
        shared.close()
        assert not lease.lost
        lease.renew()
        assert shared.lock("b").acquire().release()
    assert lease.reason is None


def test_closing_a_client_with_a_url_ends_its_leases() -> None:
    client = dibs.sync.connect(f"memory://{uuid.uuid4()}")
    lease = client.lock("a").acquire()
    client.close()
    assert lease.reason == "closed"


@pytest.mark.parametrize("wrong", [3, b"memory://", object(), dibs.Lock])
def test_what_names_no_store_is_no_default(wrong: Any) -> None:
    with pytest.raises(TypeError, match="names no store: give a URL, a client, or None"):
        dibs.set_default(wrong)
    with pytest.raises(TypeError, match="names no store: give a client"):
        dibs.override(wrong)


# -- resources ----------------------------------------------------------------------------------------


def test_a_status_names_its_resource(client: dibs.sync.Client) -> None:
    with client.semaphore("gpu/ü", 4).acquire(units=2):
        (found,) = client.list("gpu")
        assert (found.kind, found.name) == ("semaphore", "gpu/ü".encode())
        assert (
            client.status(found).holders[0].token == client.status("gpu/ü", "semaphore").last_token
        )
        assert client.semaphore(found.name, 4).locked() is False
        assert client.revoke(found, reason="a test") == 1
        assert client.status(found).holders[0].state == "revoked"


def test_a_kind_that_is_none_is_told(client: dibs.sync.Client) -> None:
    bogus: Any = "mutex"
    for ask in (
        lambda: client.status("a", bogus),
        lambda: client.revoke("a", reason="x", kind=bogus),
        lambda: list(client.list(kind=bogus)),
    ):
        with pytest.raises(ValueError, match="kind is 'mutex': the kinds are lock, semaphore"):
            ask()
    with pytest.raises(ValueError, match="kind is 'leader', and the status is that of a lock"):
        client.status(Status(b"lock:a", 1), "leader")


@pytest.mark.parametrize("wrong", [42, [1, 2], None, bytearray(b"a"), 1.5])
def test_a_name_is_str_or_bytes(client: dibs.sync.Client, wrong: Any) -> None:
    for take in (dibs.Lock, dibs.sync.Lock, client.lock, client.status):
        with pytest.raises(TypeError, match="a name is a str or bytes, not"):
            take(wrong)


# -- semaphores ---------------------------------------------------------------------------------------


def test_a_semaphore_by_config_works(client: dibs.sync.Client) -> None:
    config = LockConfig(ttl="1m", wait=0)
    gpus = dibs.sync.Semaphore.from_config("gpu", 2, config, client=client)
    assert (gpus.capacity, gpus.config) == (2, config)
    with gpus as one, gpus.acquire() as other:
        assert {*one.slots, *other.slots} == {0, 1}
        assert gpus.try_acquire() is None
        assert gpus.locked()


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
@pytest.mark.parametrize(
    ("capacity", "error"),
    [
        ("4", TypeError),
        (True, TypeError),
        (2.0, TypeError),
        (0, ValueError),
        (1_000_001, ValueError),
    ],
)
def test_a_capacity_that_is_none_is_refused(
    module: Any, capacity: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="capacity is"):
        module.Semaphore("gpu", capacity)
    with pytest.raises(error, match="capacity is"):
        module.Semaphore.from_config("gpu", capacity, LockConfig())
