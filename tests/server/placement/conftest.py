"""Servers of one service."""

from collections.abc import Iterator
from contextlib import closing

import httpx2
import pytest

from tests.server.placement.asking import FRESH, Fleet, memory
from tests.server.world import World


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with closing(Fleet()) as fleet:
        yield fleet


@pytest.fixture
def pair(fleet: Fleet) -> list[httpx2.Client]:
    return [fleet.client(fleet.start(fleet.a, fleet.b)) for _ in range(2)]


@pytest.fixture
def world() -> Iterator[World]:
    """A server with placements at two providers."""
    places = (
        memory("home", provider="aws", region="DE"),
        memory("away", provider="GCP", region="namerica"),
    )
    with World.over(leases="", placement=places, placement_fresh=FRESH) as world:
        yield world
