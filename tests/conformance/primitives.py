"""The conformance suite, and the primitives over each of our stores.

A primitive touches no store, so a store of another project needs no case of them.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dibs.testing.conformance import BackendConformance, contending
from tests.conformance.electing import LeaderClients, TaskClients
from tests.conformance.nesting import CircleClients, NestingClients
from tests.conformance.readers import ReaderClients
from tests.conformance.together import TogetherClients

WHOLE = bool(os.environ.get("DIBS_WHOLE_CONFORMANCE"))


class WholeSuite(
    BackendConformance,
    ReaderClients,
    NestingClients,
    TaskClients,
    LeaderClients,
    CircleClients,
    TogetherClients,
):
    """Every case."""

    every = 1
    """One of so many vectors is replayed, for stores to which each is dear; all with `WHOLE`."""

    contention = 40
    """Rounds of each thread in the cases of `Contending`; fewer likewise."""

    _seen = 0

    @pytest.fixture(autouse=True)
    def _contention(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if not WHOLE:
            monkeypatch.setattr(contending, "ROUNDS", self.contention)

    def replays(self, steps: Sequence[Mapping[str, Any]]) -> bool:
        self._seen += 1
        return WHOLE or self._seen % self.every == 0
