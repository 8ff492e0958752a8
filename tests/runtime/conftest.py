"""Stores that processes share, by name: a file, or one of the servers that the tests start."""

from pathlib import Path

import pytest

SHARED = ("sqlite", "redis", "postgres")


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of an empty store of that kind."""
    if kind == "sqlite":
        return f"sqlite:///{folder / 'leases.db'}"
    found: str = request.getfixturevalue(f"{kind}_url")
    return found


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A file, if a test does not mind."""
    return url_of("sqlite", request, tmp_path)
