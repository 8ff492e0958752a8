"""Tokens: for a minute, and no longer than their key."""

from collections.abc import AsyncIterator, Sequence

import pytest

from dibs.server.api.problems import ApiProblem
from dibs.server.auth import credentials
from dibs.server.auth.credentials import TOKEN_LEEWAY as LEEWAY
from dibs.server.auth.credentials import TOKEN_LIFETIME as LIFETIME
from dibs.server.auth.credentials import ServiceSecret, Signatures, Tokens
from dibs.server.auth.keys import KeyService, Unauthenticated
from dibs.server.auth.policy import Principal, Scope
from dibs.server.auth.sessions import LINK_LIFETIME, MOST_ENDED, Sessions
from dibs.server.records import records_for
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


def signed(ring: KeyService, *claims: object) -> str:
    """A token as a server of this service would sign it."""
    return Signatures(ring.secrets, "token").sign(claims)


@pytest.mark.parametrize(
    "claims", [(), ("KEY",), ("KEY", "never"), (["KEY"], 1), ("KEY", 1e12, 1), ("nobody", 1)]
)
async def test_what_is_no_token_is_none(
    ring: KeyService, owner: Principal, clock: ManualClock, claims: Sequence[object]
) -> None:
    """Also if it was signed, as by a later release."""
    soon = int(clock.stamp() / 1e6) + LIFETIME
    assert ring.authenticate(f"Bearer {signed(ring, owner.key_id, soon)}") == owner
    values = {"KEY": owner.key_id, 1: soon}
    token = signed(ring, *(values.get(each, each) if each != ["KEY"] else each for each in claims))
    assert refusal(ring, token) == "unknown"


@pytest.mark.parametrize(("lifetime", "good"), [(LIFETIME, True), (LIFETIME + LEEWAY + 1, False)])
async def test_a_token_that_lives_too_long_is_none(
    ring: KeyService, owner: Principal, clock: ManualClock, lifetime: int, good: bool
) -> None:
    """A server whose clock is wrong gives out such tokens."""
    token = signed(ring, owner.key_id, int(clock.stamp() / 1e6) + lifetime)
    if good:
        assert ring.authenticate(f"Bearer {token}") == owner
    else:
        assert refusal(ring, token) == "expired"


async def test_a_changed_token_is_none(
    ring: KeyService, owner: Principal, clock: ManualClock
) -> None:
    token = ring.token(owner)
    body, signature = token.split(".")
    other = "A" if signature[0] != "A" else "B"
    later = signed(ring, owner.key_id, int(clock.stamp() / 1e6) + LIFETIME + 1).split(".")[0]
    for forged in (
        f"{body}.{other}{signature[1:]}",
        f"{body}.",
        f".{signature}",
        f"{later}.{signature}",
    ):
        assert refusal(ring, forged) == "unknown"
    assert refusal(ring, body) == "malformed"


async def test_an_older_secret_is_accepted_and_only_the_newest_signs(
    clock: ManualClock,
) -> None:
    old, new = "o" * 32, "n" * 32
    before, between, after = (
        Tokens(ServiceSecret(given), clock) for given in ((old,), (new, old), (new,))
    )
    from_before, from_between = before.issue("a"), between.issue("b")
    assert between.key_of(from_before) == ("a", True)
    assert after.key_of(from_between) == ("b", True)
    assert before.key_of(from_between) is None
    assert after.key_of(from_before) is None


def test_so_many_tokens_are_remembered_and_no_more(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "REMEMBERED", 8)
    tokens = Tokens(ServiceSecret(), clock)
    for each in range(20):
        assert tokens.key_of(tokens.issue(f"key{each}")) == (f"key{each}", True)
    assert len(tokens._verified) <= 8


def test_what_is_signed_for_one_purpose_is_invalid_for_another() -> None:
    secret = ServiceSecret()
    one, other = Signatures(secret, "one"), Signatures(secret, "other")
    assert one.read(one.sign("x"), str) == "x"
    assert one.read(other.sign("x"), str) is None
    assert one.read("\ud800.x", str) is None


async def test_a_link_expires_and_stays_used_up() -> None:
    clock, records = ManualClock(), records_for("memory://links")
    keys = KeyService(records, clock)
    await keys.cache.load()
    who, _ = await keys.create("me", {Scope.ADMIN}, [])
    sessions = Sessions(keys, records)

    async def refused(link: str) -> bool:
        try:
            await sessions.by_link(link)
        except ApiProblem as problem:
            return problem.status == 401
        return False

    used, late = sessions.link_for(who.key_id), sessions.link_for(who.key_id)
    _, link = await sessions.by_link(used)
    await sessions.use_up(link)
    assert await refused(used)
    for _ in range(MOST_ENDED + 1):  # more sign-outs than are remembered
        await sessions.end(sessions._begin(who).session)
    assert await refused(used)
    clock.advance(LINK_LIFETIME - 1)
    await keys.cache.refresh()
    assert not await refused(late)
    clock.advance(1)
    await keys.cache.refresh()
    assert await refused(late)
    assert await refused("\ud800")
    await keys.cache.close()
