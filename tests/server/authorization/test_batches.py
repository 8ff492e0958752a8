"""Each command of a batch is judged by itself."""

from typing import Any, get_args

import httpx2
import pytest

from dibs.model import Acquire, Command, Inspect, Release, Renew, Resize, Revoke
from dibs.server.auth.policy import Scope
from dibs.stores.http.names import encoded
from tests.server.authorization.matrix import NAME, UNUSED, Matrix, check_tells_nothing_secret

COMMANDS: dict[type, tuple[Scope, dict[str, Any]]] = {
    Acquire: (Scope.ACQUIRE, {"id": "x" * 22, "owner": "me", "ttl": 10.0}),
    Renew: (Scope.ACQUIRE, {"id": "x" * 22, "ttl": 10.0}),
    Release: (Scope.ACQUIRE, {"id": "x" * 22}),
    Resize: (Scope.ACQUIRE, {"id": "x" * 22, "units": 1, "seq": 1}),
    Inspect: (Scope.READ, {}),
    Revoke: (Scope.FORCE, {"lease": "0" * 24, "reason": "a test"}),
}
"""What each command of a batch needs, and how one is made."""


NAMES = (NAME, b"matrix/other/x", b"matrix/in/../other/x", b"elsewhere", b"matrix/in", b"\xff/x")
KEYS = [*(b"lock:" + name for name in NAMES)]
KEYS += [kind + b":" + NAME for kind in (b"semaphore", b"tasklock", b"leader", b"rwlock")]

each_command = pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)


def test_every_command_of_a_batch_is_in_this_matrix() -> None:
    assert set(get_args(Command.__value__)) == set(COMMANDS)


def send(client: httpx2.Client, kind: type, *keys: bytes) -> list[dict[str, Any]]:
    command = {"op": kind.__name__.lower()} | COMMANDS[kind][1]
    sent = [command | {"key": encoded(key)} for key in keys]
    replies: list[dict[str, Any]] = client.post("/v1/batch", json={"commands": sent}).json()[
        "replies"
    ]
    return replies


@each_command
def test_each_command_needs_its_scope_for_its_name(matrix: Matrix, kind: type) -> None:
    scope = COMMANDS[kind][0]
    for who in matrix.everybody:
        for key, reply in zip(KEYS, send(who.client, kind, *KEYS), strict=True):
            where = f"{kind.__name__} of {key!r} by a key with {who}"
            name = key.partition(b":")[2]
            told = str({field: value for field, value in reply.items() if field != "key"})
            check_tells_nothing_secret(matrix, who, told, where)
            if who.may(scope, name):
                assert reply.get("reason") != "forbidden", f"{where}: {reply}"
            elif kind is Inspect:
                (unused,) = send(who.client, kind, b"lock:" + name + b"-never-used")
                assert reply | {"key": ""} == unused | {"key": ""}, where
            else:
                assert (reply["is"], reply["reason"]) == ("failed", "forbidden"), where
                assert scope.value in reply["detail"]
    send(matrix.one(Scope.ADMIN), Release, *KEYS)  # what was acquired in passing


def test_what_a_key_may_not_inspect_looks_never_used(matrix: Matrix) -> None:
    clients = matrix.one(Scope.ADMIN), matrix.one(Scope.READ, b"matrix/other/")
    truth, told = (send(client, Inspect, b"lock:" + UNUSED) for client in clients)
    assert told == truth


@each_command
def test_a_key_that_is_none_is_let_through_by_no_scope(matrix: Matrix, kind: type) -> None:
    wrong = (b"", b":", b"lock", b"lock:", b"LOCK:" + NAME, b" lock:x", b"lock\0:x")
    replies = send(matrix.one(Scope.ADMIN), kind, *wrong, b"lock:" + b"x" * 513)
    assert {(each["is"], each["reason"]) for each in replies} == {("failed", "invalid")}
