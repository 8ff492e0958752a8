"""One matrix for all of these tests."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dibs.server.auth.credentials import ServiceSecret, Signatures
from dibs.server.auth.keys import KeyService
from dibs.server.auth.policy import Principal, Scope
from tests.server.authorization.matrix import (
    DIRECTORIES,
    NAME,
    NOTE,
    OWNER,
    Matrix,
    Someone,
    client_of,
)
from tests.server.inside import keys_of
from tests.server.world import World, acquired


@pytest.fixture(scope="package")
def matrix() -> Iterator[Matrix]:
    with World.over() as world, ExitStack() as stack:
        held = acquired(world.client(), NAME, ttl=600, note=NOTE, **{"client-id": OWNER})
        everybody = [
            Someone(scope, directories, client_of(world, world.key(scope, prefixes=directories)))
            for scope in Scope
            for directories in DIRECTORIES
        ]
        for who in everybody:
            stack.callback(who.client.close)
        yield Matrix(world, held["id"], everybody, _headers_of_nobody(world))


def _headers_of_nobody(world: World) -> dict[str, str | None]:
    ring: KeyService = keys_of(world)
    revoked, revoked_text = world.do(lambda: ring.create("revoked", {Scope.ADMIN}, []))
    token_of_revoked = ring.token(revoked)
    world.do(lambda: ring.revoke(revoked.key_id))
    _, expired = world.do(lambda: ring.create("old", {Scope.ADMIN}, [], expires_in=1e-6))
    good, good_text = world.do(lambda: ring.create("good", {Scope.ADMIN}, []))
    return {
        "no key": None,
        "an empty header": "",
        "another scheme": f"Basic {good_text}",
        "the key alone": good_text,
        "a bad key": f"Bearer {good_text[:-1]}{'A' if good_text[-1] != 'A' else 'Q'}",
        "a key cut short": f"Bearer {good_text[:-1]}",
        "a key that never was": "Bearer dibs_000000000000_0123456789012345678901",
        "its id alone": f"Bearer dibs_{good.key_id}_",
        "a revoked key": f"Bearer {revoked_text}",
        "a token of a revoked key": f"Bearer {token_of_revoked}",
        "an expired key": f"Bearer {expired}",
        "an expired token": f"Bearer {_token(ring, good, -3600)}",
        "a token of another service": f"Bearer {_token(ring, good, 60, secret=ServiceSecret(['x' * 32]))}",
        "a token of nobody's": f"Bearer {_token(ring, None, 60)}",
    }


def _token(
    ring: KeyService, who: Principal | None, seconds: float, secret: ServiceSecret | None = None
) -> str:
    claims = (who.key_id if who else "nobody", int(time.time() + seconds))
    return Signatures(secret or ring.secrets, "token").sign(claims)
