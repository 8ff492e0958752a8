"""Each command of a batch is judged by itself."""

from typing import Any, get_args

import pytest

from dibs.model import Acquire, Command, Inspect, Release, Renew, Resize, Revoke
from dibs.server.auth.policy import Scope
from dibs.stores.http.names import encoded
from tests.server.authorization.asking import check_tells_nothing_secret
from tests.server.authorization.matrix import DIRECTORIES, NAME, UNUSED, Matrix, Someone

COMMANDS: dict[type, tuple[Scope, dict[str, Any]]] = {
    Acquire: (Scope.ACQUIRE, {"id": "x" * 22, "owner": "me", "ttl": 10.0}),
    Renew: (Scope.ACQUIRE, {"id": "x" * 22, "ttl": 10.0}),
    Release: (Scope.ACQUIRE, {"id": "x" * 22}),
    Resize: (Scope.ACQUIRE, {"id": "x" * 22, "units": 1, "seq": 1}),
    Inspect: (Scope.READ, {}),
    Revoke: (Scope.FORCE, {"lease": "0" * 24, "reason": "a test"}),
}
"""What each command of a batch needs, and how one is made."""


def test_every_command_of_a_batch_is_in_this_matrix() -> None:
    assert set(get_args(Command.__value__)) == set(COMMANDS)


def send(who: Someone, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    answer = who.client.post("/v1/batch", json={"commands": commands})
    assert answer.status_code == 200, answer.text
    replies: list[dict[str, Any]] = answer.json()["replies"]
    return replies


def command(kind: type, key: bytes) -> dict[str, Any]:
    return {"op": kind.__name__.lower(), "key": encoded(key), **COMMANDS[kind][1]}


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_each_command_needs_its_scope_for_its_name(matrix: Matrix, kind: type) -> None:
    scope = COMMANDS[kind][0]
    names = (
        NAME,
        b"matrix/other/x",
        b"matrix/in/../other/x",
        b"elsewhere",
        b"matrix/in",
        b"\xff/x",
    )
    for who in matrix.everybody:
        keys = [b"lock:" + name for name in names]
        keys += [b"semaphore:" + NAME, b"tasklock:" + NAME, b"leader:" + NAME, b"rwlock:" + NAME]
        for key, reply in zip(keys, send(who, *(command(kind, key) for key in keys)), strict=True):
            where = f"{kind.__name__} of {key!r} by a key with {who}"
            name = key.partition(b":")[2]
            told = str({field: value for field, value in reply.items() if field != "key"})
            check_tells_nothing_secret(matrix, who, told, where)
            if who.may(scope, name):
                assert reply.get("reason") != "forbidden", f"{where}: {reply}"
            elif kind is Inspect:
                (unused,) = send(who, command(kind, b"lock:" + name + b"-never-used"))
                assert reply | {"key": ""} == unused | {"key": ""}, where
            else:
                assert (reply["is"], reply["reason"]) == ("failed", "forbidden"), where
                assert scope.value in reply["detail"]
    _release_all(matrix)


def _release_all(matrix: Matrix) -> None:
    """What the matrix has acquired in passing."""
    admin = matrix.everybody[-len(DIRECTORIES)]
    assert (admin.scope, admin.directories) == (Scope.ADMIN, ())
    kinds = (b"lock", b"semaphore", b"rwlock", b"tasklock", b"leader")
    names = (
        NAME,
        b"matrix/other/x",
        b"matrix/in/../other/x",
        b"elsewhere",
        b"matrix/in",
        b"\xff/x",
    )
    send(admin, *(command(Release, k + b":" + n) for k in kinds for n in names))


def test_what_a_key_may_not_inspect_looks_never_used_to_an_administrator_too(
    matrix: Matrix,
) -> None:
    admin = matrix.everybody[-len(DIRECTORIES)]
    outsider = next(who for who in matrix.everybody if who.directories == (b"matrix/other/",))
    (truth,) = send(admin, command(Inspect, b"lock:" + UNUSED))
    (told,) = send(outsider, command(Inspect, b"lock:" + UNUSED))
    assert told == truth


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "key",
    [b"", b":", b"lock", b"lock:", b"LOCK:" + NAME, b" lock:x", b"lock\0:x", b"lock:" + b"x" * 513],
)
def test_a_key_that_is_none_is_let_through_by_no_scope(
    matrix: Matrix, kind: type, key: bytes
) -> None:
    admin = matrix.everybody[-len(DIRECTORIES)]
    (reply,) = send(admin, command(kind, key))
    assert (reply["is"], reply["reason"]) == ("failed", "invalid")
