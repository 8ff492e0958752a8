"""A story of the ledger, for each test its own."""

import pytest

from tests.core.story import Story


@pytest.fixture
def story() -> Story:
    return Story()
