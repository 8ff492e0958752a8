"""What tests of the torture of real processes share."""

import pytest


@pytest.fixture(autouse=True)
def _do_not_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is thrown away afterwards: no need to see that it drops the places of the dead."""
    monkeypatch.setattr("dibs.testing.torture.supervise.LINGER", 0.0)
