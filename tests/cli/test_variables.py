"""A misspelt variable is told, with what may be meant."""

import pytest

from dibs.cli.app import misspelt
from tests.cli.processes import Cli


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("URLL", "URL"),
        ("TLT", "TTL"),
        ("API_KY", "API_KEY"),
        ("LOCK__X__TLT", "LOCK__X__TTL"),
        ("LOK__X__TTL", "LOCK__X__TTL"),
        ("LEADER__X__RETRI", "LEADER__X__RETRY"),
        ("TASKLOCK__X__MIN_HOLDS", "TASKLOCK__X__MIN_HOLD"),
        ("STORES__REPORTS__ULR", "STORES__REPORTS__URL"),
    ],
)
def test_it_is_guessed_and_what_it_is_set_to_not_shown(variable: str, meant: str) -> None:
    (told,) = misspelt({f"DIBS_{variable}": "s3cret"})
    assert told == (f"ignored the unknown setting DIBS_{variable}. Did you mean DIBS_{meant}?")


def test_a_setting_of_one_lock_that_is_like_no_other() -> None:
    (told,) = misspelt({"DIBS_LOCK__X__XYZ": "red"})
    assert told == "ignored the unknown setting DIBS_LOCK__X__XYZ"


@pytest.mark.parametrize(
    "variable",
    [
        *("URL", "TTL", "API_KEY", "CONFIG", "CALL_TIMEOUT", "LOCK__X__TTL", "SERVER_STORE"),
        *("TASKLOCK__X__MAX_HOLD", "LEADER__X__RENEW_DEADLINE", "STORES__A__CALL_TIMEOUT"),
        *("SERVICE_HOST", "PORT_443_TCP_ADDR", "VERSION", "USER"),
    ],
)
def test_what_is_a_setting_or_somebody_else_s_business(variable: str) -> None:
    assert not list(misspelt({f"DIBS_{variable}": "x", "URLL": "y"}))


@pytest.mark.once
def test_every_verb_says_so(cli: Cli) -> None:
    done = cli("list", env=cli.environment | {"DIBS_TLT": "5"})
    assert done.returncode == 0
    assert done.stderr == ("dibs: ignored the unknown setting DIBS_TLT. Did you mean DIBS_TTL?\n")
