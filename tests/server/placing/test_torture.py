"""A directory under load, there and back between Redis and PostgreSQL, with a crash in each phase."""

import pytest

from tests.server.placing.torture import torture


@pytest.mark.once
@pytest.mark.serial
@pytest.mark.timeout(600)
def test_nothing_is_held_twice_and_tokens_rise(redis_url: str, postgres_url: str) -> None:
    found = torture(redis_url, postgres_url)
    assert found["kills"] >= 3
    assert found["grants"] > 20
