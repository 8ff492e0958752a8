"""The differential test bites: each of these errors in the SQL is found."""

from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from leasehold.backends.postgres import migrations
from tests.backends.postgres.ledger_commands import plans
from tests.backends.postgres.ledger_mutants import MUTANTS
from tests.backends.postgres.ledger_subject import Database, database, follow


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_error_is_found(name: str, postgres_url: str) -> None:
    before, _ = MUTANTS[name]
    assert sum(m.sql.count(before) for m in migrations.migrations()) == 1, "nothing was planted"
    with database(postgres_url, MUTANTS[name]) as subject:
        with pytest.raises((AssertionError, psycopg.Error)):
            look(subject)


def look(subject: Database) -> None:
    @settings(
        max_examples=1000,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(plan=plans)
    def answers_as_memory_does(plan: list[Any]) -> None:
        follow(plan, subject, "together")

    answers_as_memory_does()
