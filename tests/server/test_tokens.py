"""Tokens: for a minute, and no longer than their key."""

import asyncio
from collections.abc import AsyncIterator

import jwt
import pytest

from dibs.server import tokens as tokens_module
from dibs.server.auth.credentials import derived
from dibs.server.auth.keys import KeyService, Unauthenticated
from dibs.server.auth.policy import Principal, Scope
from dibs.server.records import records_for
from dibs.server.tokens import LEEWAY, LIFETIME, Tokens
from dibs.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def ring(clock: ManualClock) -> AsyncIterator[KeyService]:
    ring = KeyService(records_for("memory://tokens"), clock)
    await ring.cache.load()
    yield ring
    await ring.cache.close()


@pytest.fixture
async def owner(ring: KeyService) -> Principal:
    return (await ring.create("ci", {Scope.READ}, [b"shop/"]))[0]


def refusal(ring: KeyService, token: str) -> str:
    with pytest.raises(Unauthenticated) as caught:
        ring.authenticate(f"Bearer {token}")
    return caught.value.reason


async def test_a_token_stands_for_its_key(ring: KeyService, owner: Principal) -> None:
    token = ring.token(owner)
    for _ in range(2):
        assert ring.authenticate(f"Bearer {token}") == owner
    assert owner.key_id not in token.rsplit(".", 1)[1]


async def test_a_token_ends_after_a_minute(
    ring: KeyService, owner: Principal, clock: ManualClock
) -> None:
    known, unknown = ring.token(owner), ring.token(owner)
    ring.authenticate(f"Bearer {known}")
    clock.advance(LIFETIME - 1)
    ring.authenticate(f"Bearer {known}")
    clock.advance(1 + LEEWAY)
    await ring.cache.refresh()
    assert refusal(ring, known) == refusal(ring, unknown) == "expired"


async def test_a_token_ends_with_its_key(ring: KeyService, owner: Principal) -> None:
    token = ring.token(owner)
    ring.authenticate(f"Bearer {token}")
    await ring.revoke(owner.key_id)
    assert refusal(ring, token) == "revoked"


async def test_another_service_signs_other_tokens(ring: KeyService, owner: Principal) -> None:
    other = KeyService(records_for("memory://another"))
    await other.cache.load()
    try:
        assert refusal(ring, other.token(owner)) == "unknown"
    finally:
        await other.cache.close()


@pytest.mark.parametrize("algorithm", ["none", "HS384", "HS512"])
async def test_no_other_algorithm_counts(
    ring: KeyService, owner: Principal, clock: ManualClock, algorithm: str
) -> None:
    secret = derived(ring.secrets.newest, "tokens") * 2
    now = clock.stamp() / 1e6
    claims = {"iss": "dibs", "sub": owner.key_id, "iat": int(now), "exp": int(now) + 60}
    forged = jwt.encode(claims, "" if algorithm == "none" else secret, algorithm)
    assert refusal(ring, forged) == "unknown"


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"sub": "KEY"},
        {"exp": 1e12},
        {"sub": "KEY", "exp": 1e12},
        {"sub": "KEY", "exp": 1e12, "iss": "somebody"},
        {"sub": ["KEY"], "exp": 1e12, "iss": "dibs"},
        {"sub": "KEY", "exp": "never", "iss": "dibs"},
        {"sub": "nobody", "exp": 1e12, "iss": "dibs"},
    ],
)
async def test_claims_of_others_do_not_count(
    ring: KeyService, owner: Principal, claims: dict[str, object]
) -> None:
    claims = {name: owner.key_id if value == "KEY" else value for name, value in claims.items()}
    token = jwt.encode(claims, derived(ring.secrets.newest, "tokens"), "HS256")
    assert refusal(ring, token) == "unknown"


@pytest.mark.parametrize(
    ("begin", "end", "good"),
    [(0, LIFETIME, True), (0, LIFETIME + 1, False), (0, 1e9, False), (10, 10 + LIFETIME, False)],
)
async def test_a_token_that_lives_too_long_is_none(
    ring: KeyService, owner: Principal, clock: ManualClock, begin: float, end: float, good: bool
) -> None:
    now = clock.stamp() / 1e6
    claims = {"iss": "dibs", "sub": owner.key_id, "iat": now + begin, "exp": now + end}
    token = jwt.encode(claims, derived(ring.secrets.newest, "tokens"), "HS256")
    if good:
        assert ring.authenticate(f"Bearer {token}") == owner
    else:
        assert refusal(ring, token) == "unknown"


async def test_a_changed_token_is_none(ring: KeyService, owner: Principal) -> None:
    token = ring.token(owner)
    head, body, signature = token.split(".")
    other = "A" if signature[0] != "A" else "B"
    for forged in (
        f"{head}.{body}.{other}{signature[1:]}",
        f"{head}.{body}.",
        f"{head}..{signature}",
    ):
        assert refusal(ring, forged) == "unknown"


def test_so_many_tokens_are_remembered_and_no_more(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "REMEMBERED", 8)
    tokens = Tokens(lambda: (b"x" * 32,), clock)
    for each in range(20):
        assert tokens.key_of(tokens.issue(f"key{each}")) == (f"key{each}", True)
    assert len(tokens._verified) <= 8


async def test_secrets_for_one_purpose_tell_nothing_of_those_for_another(ring: KeyService) -> None:
    secrets = {
        derived(ring.secrets.newest, purpose) for purpose in ("tokens", "lease ids", "sessions")
    }
    assert len(secrets) == 3
    assert ring.secrets.newest not in secrets
    await asyncio.sleep(0)
