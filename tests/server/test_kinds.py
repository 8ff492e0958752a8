"""A name without `kind=`: whoever has acquired it with `capacity=` or `mode=` need not say its kind again."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from secrets import token_urlsafe
from typing import Any
from uuid import uuid4

import httpx2
import msgspec
import pytest

from dibs.backends.http import wire
from dibs.backends.http.names import encoded
from dibs.core.names import KINDS, fingerprint
from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Command, Failed, Release, Reply
from dibs.runtime.port import Answer, Told
from dibs.server.config import Placement
from dibs.server.limits import Limits
from dibs.server.principal import Principal
from dibs.server.service import Service
from tests.server.placing import asking
from tests.server.test_api_locks import acquire, acquired
from tests.server.world import World, b64

WAYS: dict[str, dict[str, Any]] = {
    "lock": {},
    "semaphore": {"capacity": 2},
    "rwlock": {"mode": "read"},
    "tasklock": {"kind": "tasklock"},
    "leader": {"kind": "leader"},
}
"""How each kind is acquired."""

OTHERS = [kind for kind in KINDS if kind != "lock"]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World.over()
    yield world
    world.close()


@pytest.fixture
def client(world: World) -> httpx2.Client:
    return world.client("acquire")


@pytest.fixture
def admin(world: World) -> httpx2.Client:
    return world.client()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"tests/{request.node.name}"


@pytest.fixture
def path(name: str) -> str:
    return f"/v1/locks/{b64(name)}"


def test_every_kind_has_its_way() -> None:
    assert tuple(WAYS) == KINDS


def batch(client: httpx2.Client, *commands: wire.Command) -> list[Any]:
    answer = client.post("/v1/batch", content=msgspec.json.encode(wire.Batch(commands)))
    assert answer.status_code == 200, answer.text
    return list(msgspec.json.decode(answer.content, type=wire.BatchAnswer).replies)


def key(kind: str, name: str) -> str:
    return encoded(f"{kind}:{name}".encode())


@contextmanager
def heard(world: World) -> Generator[list[Command]]:
    """What the store is asked meanwhile."""
    told: list[Command] = []

    def observer(_: Principal, command: Command, __: Reply) -> None:
        told.append(command)

    observers = world.server.service.observers
    observers.append(observer)
    yield told
    observers.remove(observer)


def asked(commands: Sequence[Command]) -> list[tuple[str, str]]:
    return [(type(each).__name__, each.key.partition(b":")[0].decode()) for each in commands]


def under_all(command: str) -> list[tuple[str, str]]:
    return [(command, kind) for kind in KINDS]


# ---- the life of a lease --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_renewed_seen_and_released(client: httpx2.Client, name: str, path: str, kind: str) -> None:
    held = acquired(client, name, **WAYS[kind])
    renewed = client.patch(path, params={"id": held["id"], "ttl": 60})
    assert renewed.status_code == 200
    assert renewed.json()["remaining"] == pytest.approx(60, abs=5)
    shown = client.get(path).json()
    assert (shown["kind"], shown["sequencer"]) == (kind, held["sequencer"])
    released = client.delete(path, params={"id": held["id"]})
    assert released.json() == {"status": 200, "title": "Ok"}
    assert client.get(path, params={"kind": kind}).status_code == 404


def test_a_lock_costs_one_command_each(
    world: World, client: httpx2.Client, name: str, path: str
) -> None:
    held = acquired(client, name, id=token_urlsafe(16))
    with heard(world) as told:
        client.patch(path, params={"id": held["id"]})
        client.get(path)
        client.delete(path, params={"id": held["id"]})
    assert asked(told) == [("Renew", "lock"), ("Inspect", "lock"), ("Release", "lock")]


def test_what_has_a_kind_is_not_looked_for_elsewhere(
    world: World, client: httpx2.Client, name: str, path: str
) -> None:
    held = acquired(client, name, capacity=2)
    query = {"id": held["id"], "kind": "lock"}
    with heard(world) as told:
        assert client.patch(path, params=query).status_code == 410
        assert client.get(path, params={"kind": "lock"}).status_code == 404
        assert client.delete(path, params=query).status_code == 410
    assert asked(told) == [("Renew", "lock"), ("Inspect", "lock"), ("Release", "lock")]
    assert client.get(path).json()["kind"] == "semaphore"


def test_where_there_is_nothing(world: World, client: httpx2.Client, path: str) -> None:
    query = {"id": token_urlsafe(16)}
    with heard(world) as told:
        for answer, status, detail in (
            (client.patch(path, params=query), 410, "has expired or was released"),
            (client.get(path), 404, "nobody holds it"),
            (client.delete(path, params=query), 410, "nothing is held under this id"),
        ):
            assert answer.status_code == status
            assert detail in answer.json()["detail"]
    assert asked(told)[:15] == [*under_all("Renew"), *under_all("Inspect"), *under_all("Release")]


def test_a_place_in_line(client: httpx2.Client, name: str, path: str) -> None:
    acquired(client, name, capacity=1)
    query = {"id": token_urlsafe(16)}
    assert acquire(client, name, capacity=1, wait=0.1, **query).status_code == 409
    renewed = client.patch(path, params=query)
    assert (renewed.status_code, renewed.json()["type"]) == (409, "/problems/waiting")
    assert client.get(path).json()["waiting"] == 1
    assert client.delete(path, params=query).status_code == 200
    assert client.get(path).json()["waiting"] == 0


@pytest.mark.parametrize("kind", ["lock", "semaphore", "leader"])
def test_what_was_revoked_says_so(
    world: World, admin: httpx2.Client, name: str, path: str, kind: str
) -> None:
    held = acquired(admin, name, **WAYS[kind])
    admin.delete(path, params={"force": True, "reason": "it hangs", "kind": kind})
    with heard(world) as told:
        lost = admin.patch(path, params={"id": held["id"]})
    assert (lost.status_code, lost.json()["detail"]) == (410, "the lease was revoked: it hangs")
    assert asked(told) == ([("Renew", "lock")] if kind == "lock" else under_all("Renew"))


def test_the_old_python_sdk_is_answered_as_it_expects(
    client: httpx2.Client, name: str, path: str
) -> None:
    sdk = {
        "User-Agent": "python-requests/2.28.1",
        "Accept": "application/json",
        "Content-Type": "application/json",
    }
    query = {"id": acquired(client, name, mode="write")["id"]}
    assert client.patch(path, params=query, headers=sdk).json() == "OK"
    assert client.delete(path, params=query, headers=sdk).json() == "OK"


def test_what_a_key_may_do_is_of_the_name(
    world: World, client: httpx2.Client, name: str, path: str
) -> None:
    held = acquired(client, name, capacity=2)
    other = world.client("acquire", "force", prefixes=[b"elsewhere/"])
    with heard(world) as told:
        assert other.patch(path, params={"id": held["id"]}).status_code == 403
        assert other.delete(path, params={"id": held["id"]}).status_code == 403
        assert other.delete(path, params={"force": True, "reason": "x"}).status_code == 403
        assert other.get(path).status_code == 404
    assert told == []


def test_amid_a_move() -> None:
    """The directory's keys are at two stores then, each at one of them."""
    stores = (Placement(name=each, url=f"memory://{uuid4()}") for each in ("one", "two"))
    world = World.over(
        store="", records=f"memory://{uuid4()}", placement=tuple(stores), placement_fresh=0.5
    )
    try:
        client = world.client()
        before = asking.acquired(client, "d/a", capacity=2)
        asking.move(client, "d", "two")
        asking.until(lambda: client.get(f"/v1/move/{b64('d')}/").json()["phase"] == "moving")
        after = asking.acquired(client, "d/b", mode="read")
        for name, held in (("d/a", before), ("d/b", after)):
            query = {"id": held["id"]}
            assert client.patch(asking.lock(name), params=query).status_code == 200
            assert client.get(asking.lock(name)).json()["sequencer"] == held["sequencer"]
            assert client.delete(asking.lock(name), params=query).status_code == 200
            assert client.patch(asking.lock(name), params=query).status_code == 410
            assert client.get(asking.lock(name)).status_code == 404
    finally:
        world.close()


# ---- what an account has --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_renewed_counts_on(kind: str) -> None:
    world = World.over(limits=Limits(leases_per_key=1, waiters_per_key=1))
    try:
        client, query = world.client("acquire"), {"id": token_urlsafe(16)}
        acquired(client, "counted", **WAYS[kind], **query)
        assert client.patch(f"/v1/locks/{b64('counted')}", params=query).status_code == 200
        assert acquire(client, "other").status_code == 429
        waiter = world.client("acquire")
        command = wire.Acquire(key(kind, "counted"), token_urlsafe(16), "me", 30.0, queue=True)
        assert type(batch(waiter, command)[0]) is wire.Queued
        place = waiter.patch(f"/v1/locks/{b64('counted')}", params={"id": command.id})
        assert place.json()["type"] == "/problems/waiting"
        other = wire.Acquire(key("lock", "other"), token_urlsafe(16), "me", 30.0, queue=True)
        assert "places in line" in batch(waiter, other)[0].detail
    finally:
        world.close()


# ---- releases, and copies of an Acquire that come late --------------------------------------------


@pytest.mark.parametrize("kind", OTHERS)
def test_only_the_kind_that_had_it_remembers_a_released_id(
    world: World, client: httpx2.Client, name: str, path: str, kind: str
) -> None:
    query = {"id": token_urlsafe(16)}
    acquired(client, name, **WAYS[kind], **query)
    with heard(world) as told:
        assert client.delete(path, params=query).status_code == 200
    assert asked(told) == [*under_all("Release"), ("Release", kind)]
    late = acquire(client, name, **WAYS[kind], **query)
    assert (late.status_code, late.json()["detail"][:17]) == (410, "this id has ended")
    for other in OTHERS:
        if other != kind:
            assert acquire(client, name, **WAYS[other], **query).status_code == 200


def test_an_id_that_several_kinds_have_is_released_of_all(
    client: httpx2.Client, name: str, path: str
) -> None:
    query = {"id": token_urlsafe(16)}
    for kind in ("semaphore", "leader"):
        acquired(client, name, **WAYS[kind], **query)
    assert client.delete(path, params=query).status_code == 200
    assert client.get(path).status_code == 404
    told = [acquire(client, name, **WAYS[kind], **query).status_code for kind in OTHERS]
    assert dict(zip(OTHERS, told, strict=True)) == {
        "semaphore": 410, "rwlock": 200, "tasklock": 200, "leader": 410,
    }  # fmt: skip


def test_every_kind_remembers_an_id_of_which_nothing_is_known(
    world: World, client: httpx2.Client, name: str, path: str
) -> None:
    """Its Acquire may be on its way to any of them."""
    query = {"id": token_urlsafe(16)}
    with heard(world) as told:
        assert client.delete(path, params=query).status_code == 410
    buried = [each for each in told if isinstance(each, Release) and each.bury]
    assert asked(buried) == under_all("Release")
    assert {each.bury for each in buried} == {world.server.service.doubts.buried(told[0]).bury}  # type: ignore[arg-type]
    for way in WAYS.values():
        assert acquire(client, name, **way, **query).status_code == 410


@pytest.mark.parametrize("is_held", [True, False])
def test_nobody_remembers_an_id_of_the_services_own(
    world: World, client: httpx2.Client, name: str, path: str, is_held: bool
) -> None:
    """No other server asks for a grant under it, and this one knows whether it has."""
    lease = acquired(client, name, capacity=2)["id"]
    if not is_held:
        client.delete(path, params={"id": lease, "kind": "semaphore"})
    with heard(world) as told:
        assert client.delete(path, params={"id": lease}).status_code == (200 if is_held else 410)
    assert asked(told) == under_all("Release")
    assert not any(each.bury for each in told if isinstance(each, Release))


@pytest.mark.parametrize("is_held", [True, False])
def test_a_late_copy_that_comes_amid_a_release_is_released_too(
    client: httpx2.Client, name: str, path: str, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, ask_all = token_urlsafe(16), Service.ask_all
    if is_held:
        acquired(client, name, capacity=2, id=lease)
    came: list[Reply] = []

    async def and_then(
        service: Service, who: Principal, commands: Sequence[Command]
    ) -> Sequence[Told]:
        told = await ask_all(service, who, commands)
        if not came:
            late = Acquire(f"semaphore:{name}".encode(), lease, "me", 30.0, capacity=2)
            came.append((await service.ask(who, late)).reply)
        return told

    monkeypatch.setattr(Service, "ask_all", and_then)
    assert client.delete(path, params={"id": lease}).status_code == 200
    assert type(came[0]).__name__ == "Granted"
    assert client.get(path).status_code == 404
    assert acquire(client, name, capacity=2, id=lease).status_code == 410


# ---- a kind that can't be asked -------------------------------------------------------------------


@pytest.fixture(params=["an error", "a reply"])
def broken(
    request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The kinds of which there is no word."""
    runtime, kinds = world.server.service.runtime, list[str]()
    call_all = runtime.call_all

    async def partly(commands: Sequence[Command], patience: float | None = None) -> Sequence[Told]:
        told = list(await call_all(commands, patience))
        for number, command in enumerate(commands):
            if command.key.partition(b":")[0].decode() in kinds:
                told[number] = (
                    BackendUnavailable("it is away")
                    if request.param == "an error"
                    else Answer(Failed("away", "it is away"), 0.0)
                )
        return told

    monkeypatch.setattr(runtime, "call_all", partly)
    return kinds


def test_nothing_is_lost_while_one_kind_is_not_heard_of(
    admin: httpx2.Client, name: str, path: str, broken: list[str]
) -> None:
    query = {"id": acquired(admin, name, mode="read", id=token_urlsafe(16))["id"]}
    broken.append("rwlock")
    for answer in (
        admin.patch(path, params=query),
        admin.get(path),
        admin.delete(path, params={"force": True, "reason": "x"}),
        admin.delete(path, params=query),
    ):
        assert (answer.status_code, answer.json()["detail"]) == (503, "it is away")
    broken.clear()
    assert admin.delete(path, params=query).status_code == 410, "that was done"


def test_what_is_found_is_found_whatever_the_other_kinds_say(
    client: httpx2.Client, name: str, path: str, broken: list[str]
) -> None:
    query = {"id": acquired(client, name, mode="read")["id"]}
    broken += ["semaphore", "leader"]
    assert client.patch(path, params=query).status_code == 200
    assert client.get(path).json()["kind"] == "rwlock"
    assert client.delete(path, params=query).status_code == 200


@pytest.mark.parametrize("reply", [Failed("away", "it is away"), BackendUnavailable("it is away")])
def test_a_release_whose_id_could_not_be_remembered_is_to_be_sent_again(
    world: World, client: httpx2.Client, name: str, path: str, monkeypatch: pytest.MonkeyPatch,
    reply: Failed | BackendUnavailable,
) -> None:  # fmt: skip
    query = {"id": token_urlsafe(16)}
    acquired(client, name, capacity=2, **query)
    runtime = world.server.service.runtime
    call_all = runtime.call_all

    async def partly(commands: Sequence[Command], patience: float | None = None) -> Sequence[Told]:
        told = list(await call_all(commands, patience))
        for number, command in enumerate(commands):
            if isinstance(command, Release) and command.bury:
                told[number] = Answer(reply, 0.0) if isinstance(reply, Failed) else reply
        return told

    with monkeypatch.context() as broken:
        broken.setattr(runtime, "call_all", partly)
        answer = client.delete(path, params=query)
        assert (answer.status_code, answer.json()["detail"]) == (503, "it is away")
    assert client.delete(path, params=query).status_code == 410
    assert acquire(client, name, capacity=2, **query).status_code == 410


def test_a_lock_of_which_there_is_no_word_is_not_looked_for_elsewhere(
    world: World, client: httpx2.Client, name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = {"id": acquired(client, name, capacity=2)["id"]}

    async def away(*_: object) -> Answer:
        return Answer(Failed("away", "it is away"), 0.0)

    with monkeypatch.context() as broken, heard(world) as told:
        broken.setattr(world.server.service.runtime, "call", away)
        for answer in (
            client.patch(path, params=query),
            client.get(path),
            client.delete(path, params=query),
        ):
            assert (answer.status_code, answer.json()["detail"]) == (503, "it is away")
    assert asked(told) == [("Renew", "lock"), ("Inspect", "lock"), ("Release", "lock")]


# ---- several kinds of one name --------------------------------------------------------------------


def test_the_first_kind_that_is_held_is_seen(client: httpx2.Client, name: str, path: str) -> None:
    held = [acquired(client, name, **WAYS[kind]) for kind in KINDS]
    for kind, each in zip(KINDS, held, strict=True):
        answer = client.get(path)
        assert (answer.json()["kind"], answer.json()["sequencer"]) == (kind, each["sequencer"])
        same = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert same.status_code == 304
        client.delete(path, params={"id": each["id"]})
        other = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert other.status_code == (404 if kind == KINDS[-1] else 200)


def test_an_etag_is_of_one_kind(world: World, client: httpx2.Client, name: str, path: str) -> None:
    """Even where all else that it is made of is alike."""
    floor = world.server.service.runtime.stamp() + 10_000_000
    lease = token_urlsafe(16)
    for kind in ("lock", "semaphore"):
        command = wire.Acquire(key(kind, name), lease, "me", 30.0, floor=floor)
        assert batch(client, command)[0].token == floor + 1
    tag = client.get(path).headers["etag"]
    assert client.delete(path, params={"id": lease}).status_code == 200
    answer = client.get(path, headers={"If-None-Match": tag})
    assert (answer.status_code, answer.json()["kind"]) == (200, "semaphore")


# ---- ending others' -------------------------------------------------------------------------------

FORCED: dict[str, Any] = {"force": True, "reason": "it hangs"}


def audited(admin: httpx2.Client, name: str) -> list[str]:
    entries = admin.get("/v1/audit").json()["entries"]
    return [
        each["detail"]["kind"]
        for each in entries
        if (each["what"], each["name"]) == ("force release", name)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_only_kind_that_is_held_is_ended(
    admin: httpx2.Client, name: str, path: str, kind: str
) -> None:
    held = acquired(admin, name, **WAYS[kind])
    forced = admin.delete(path, params=FORCED)
    assert (forced.status_code, forced.json()["count"]) == (200, 1)
    assert audited(admin, name) == [kind]
    query = {"id": held["id"], "kind": kind}
    assert "it hangs" in admin.patch(path, params=query).json()["detail"]


def test_which_of_several_kinds_is_ended_has_to_be_said(
    admin: httpx2.Client, name: str, path: str
) -> None:
    lock, readers = acquired(admin, name), acquired(admin, name, mode="read")
    refused = admin.delete(path, params=FORCED)
    assert (refused.status_code, refused.json()["type"]) == (400, "/problems/malformed")
    assert f"{name} is held under several kinds: lock, rwlock" in refused.json()["detail"]
    assert "kind=" in refused.json()["detail"]
    assert audited(admin, name) == []
    for held in (lock, readers):
        assert admin.patch(path, params={"id": held["id"]}).status_code == 200
    assert admin.delete(path, params=FORCED | {"kind": "rwlock"}).json()["count"] == 1
    assert admin.patch(path, params={"id": lock["id"]}).status_code == 200


@pytest.mark.parametrize("how", ["lease", "id"])
def test_one_lease_is_of_one_kind(admin: httpx2.Client, name: str, path: str, how: str) -> None:
    lock, readers = acquired(admin, name), acquired(admin, name, mode="read")
    which = fingerprint(readers["id"]) if how == "lease" else readers["id"]
    assert admin.delete(path, params=FORCED | {how: which}).json()["count"] == 1
    assert admin.patch(path, params={"id": readers["id"]}).status_code == 410
    assert admin.patch(path, params={"id": lock["id"]}).status_code == 200


def test_what_nobody_holds_but_is_kept_closed_is_no_other_kind(
    admin: httpx2.Client, name: str, path: str
) -> None:
    acquired(admin, name)
    lease = token_urlsafe(16)
    batch(
        admin,
        wire.Acquire(key("tasklock", name), lease, "me", 30.0),
        wire.Release(key("tasklock", name), lease, keep=30.0),
    )
    assert admin.get(path, params={"kind": "tasklock"}).json()["holders"][0]["state"] == "kept"
    assert admin.delete(path, params=FORCED).json()["count"] == 1
    assert audited(admin, name) == ["lock"]


def test_nothing_to_end(admin: httpx2.Client, name: str, path: str) -> None:
    answer = admin.delete(path, params=FORCED)
    assert (answer.status_code, answer.json()["detail"]) == (404, "nobody holds it")
    assert audited(admin, name) == ["lock"]
