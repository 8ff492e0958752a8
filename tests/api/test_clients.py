"""Clients: what they are told, what is theirs to close, and how a resource is named to them."""

import importlib
import inspect
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import LeaderConfig, LockConfig, Status, TaskLockConfig
from tests.pages import blocks, run


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


MODULES = (
    "dibs",
    "dibs.sync",
    "dibs.tasks",
    "dibs.testing",
    "dibs.contrib.celery",
    "dibs.contrib.django",
    "dibs.contrib.fastapi",
)

TAKE_A_CLIENT_ITSELF = {"connect", "override"}
"""One is given somebody else's client, the other is told what to put in a store's stead."""

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Held": ("a",),
    "LeaderElection": ("a",),
    "LeaderElection.from_config": ("a", LeaderConfig()),
    "Lock": ("a",),
    "Lock.from_config": ("a", LockConfig()),
    "Lock.wraps": ("a",),
    "Semaphore.wraps": ("a", 2),
    "RWLock": ("a",),
    "RWLock.from_config": ("a", LockConfig()),
    "Semaphore": ("a", 2),
    "Semaphore.from_config": ("a", 2, LockConfig()),
    "TaskLock": ("a", 0, 60),
    "TaskLock.from_config": ("a", TaskLockConfig(min_hold=0, max_hold=60)),
    "TaskLock.wraps": ("a",),
    "Tasks": (),
    "locked": ("a",),
}
"""How each is made."""

OPTIONS = {"TaskLock.wraps": {"min_hold": 0, "max_hold": 60}}


def names_in(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    return listed or [
        name
        for name, each in vars(module).items()
        if not name.startswith("_") and getattr(each, "__module__", None) == module.__name__
    ]


def callables(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a person may call, by its name."""
    for name in names_in(module):
        found = getattr(module, name)
        if callable(found):
            yield name, found
        if inspect.isclass(found):
            methods = (each for each in dir(found) if not each.startswith("_"))
            yield from ((f"{name}.{each}", getattr(found, each)) for each in methods)


def takes_a_client(function: Any) -> bool:
    """By its own name, or among its options."""
    if not callable(function):
        return False
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # of the interpreter's own
        return False
    options = [
        str(each.annotation) for each in parameters.values() if each.kind is each.VAR_KEYWORD
    ]
    return "client" in parameters or any("requests.ClientLockOptions[" in each for each in options)


FOUND = [
    pytest.param(name, called, id=f"{module}-{name}")
    for module in MODULES
    for name, called in callables(importlib.import_module(module))
    if takes_a_client(called) and name not in TAKE_A_CLIENT_ITSELF
]


def test_each_is_found_and_tried() -> None:
    assert {found.values[0] for found in FOUND} == ARGUMENTS.keys()


def decorated(made: Any) -> Any:
    """A decorator says what is wrong at the latest when it is used."""

    def function() -> None: ...

    return made(function) if inspect.isfunction(made) else made


@pytest.mark.parametrize(("name", "called"), FOUND)
def test_it_takes_the_name_of_a_store(name: str, called: Any) -> None:
    def made(client: str) -> Any:
        return decorated(called(*ARGUMENTS[name], client=client, **OPTIONS.get(name, {})))

    made("reports")
    with pytest.raises(ValueError, match="a store's name is 'Reports'"):
        made("Reports")


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("lock.md", "4 more, under token"),
        ("tasklock.md", "we report, with token"),
        ("leader-election.md", "term 2 led by"),
        ("allof.md", "both are given up"),
        ("from-redis-py.md", "mine, with token"),
    ],
)
def test_a_pages_example_works(page: str, told: str, tmp_path: Path) -> None:
    [example] = blocks(page)
    assert told in run(example, tmp_path)
