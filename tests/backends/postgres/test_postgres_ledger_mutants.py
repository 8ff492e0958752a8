"""The differential test bites: each of these errors in the SQL is found."""

from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from dibs.backends.postgres import migrations
from tests.backends.postgres.ledger_commands import crowds, plans
from tests.backends.postgres.ledger_mutants import LONE_MUTANTS, MUTANTS
from tests.backends.postgres.ledger_subject import Database, database, follow
from tests.backends.told_plans import TOLD


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_error_is_found(name: str, postgres_url: str) -> None:
    find(postgres_url, MUTANTS[name], "together")


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("name", LONE_MUTANTS)
def test_one_in_the_short_way_is_found(name: str, postgres_url: str) -> None:
    find(postgres_url, LONE_MUTANTS[name], "alone")


def find(url: str, edit: tuple[str, str], manner: str) -> None:
    planted = sum(migration.sql.count(edit[0]) for migration in migrations.migrations())
    assert planted == 1, "nothing was planted, or too much"
    with database(url, edit) as subject:
        with pytest.raises((AssertionError, psycopg.Error)):
            look(subject, manner)


def look(subject: Database, manner: str) -> None:
    @settings(
        max_examples=1000,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(plan=crowds if manner == "alone" else plans)
    def answers_as_memory_does(plan: list[Any]) -> None:
        follow(plan, subject, manner)

    for plan in TOLD:
        follow(plan, subject, manner)
    answers_as_memory_does()
