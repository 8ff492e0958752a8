"""`dibs --store NAME`: a store that settings name."""

from pathlib import Path
from subprocess import PIPE, CompletedProcess

import click
import pytest

from dibs.cli import options
from tests.cli.processes import Cli


class Reports:
    """A file, the store in which the environment names "reports"."""

    def __init__(self, cli: Cli, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self._cli = cli

    def __call__(self, *line: str, store: str = "reports") -> CompletedProcess[str]:
        environment = self._cli.environment | {"DIBS_STORES__REPORTS__URL": self.url}
        return self._cli("--store", store, *line, env=environment)


@pytest.fixture
def reports(cli: Cli, tmp_path: Path) -> Reports:
    return Reports(cli, tmp_path / "reports.db")


def test_every_verb_goes_to_the_named_store(reports: Reports) -> None:
    done = reports("run", "x", "--", "true")
    assert done.returncode == 0, done.stderr
    assert reports("list").returncode == 0
    assert reports("doctor").stdout.startswith(f"{reports.url}\n")


def test_what_is_held_in_the_default_store_is_not_held_there(cli: Cli, reports: Reports) -> None:
    cli.hold("x", stdin=PIPE)
    assert cli("show", "x").returncode == 0
    assert reports("show", "x").returncode == 1


def test_a_name_that_is_unknown_or_too_much_is_told(reports: Reports) -> None:
    done = reports("list", store="report")
    assert done.returncode == 64
    assert "no store is named 'report' here: there are 'reports'" in done.stderr
    done = reports("list", "--url", "sqlite:///x.db")
    assert done.returncode == 64
    assert "give either --url or --store" in done.stderr


def test_verify_knows_the_password_of_a_named_store() -> None:
    with (
        click.Context(click.Command("dibs")) as context,
        pytest.MonkeyPatch.context() as settings,
    ):
        context.meta["store"] = "reports"
        settings.setenv("DIBS_STORES__REPORTS__URL", "redis://me:secret@localhost:1")
        assert options.full_url() == "redis://me:secret@localhost:1"
        context.meta["url"] = "sqlite:///x.db"
        with pytest.raises(click.UsageError, match="give either --url or --store"):
            options.full_url()


@pytest.mark.once
def test_the_store_is_given_before_the_verb_or_after_it(cli: Cli, reports: Reports) -> None:
    assert reports("run", "x", "--", "true").returncode == 0
    environment = cli.environment | {"DIBS_STORES__REPORTS__URL": reports.url}
    for place in ("--store", "reports"), ("--url", reports.url):
        before = cli(*place, "doctor", env=environment)
        after = cli("doctor", *place, env=environment)
        assert before.stdout.startswith(f"{reports.url}\n"), before.stderr
        assert after.stdout.startswith(f"{reports.url}\n"), after.stderr
    twice = cli("--url", reports.url, "list", "--url", "sqlite:///x.db")
    assert (twice.returncode, "--url is given twice" in twice.stderr) == (64, True)
    useless = cli("--url", reports.url, "version")
    assert (useless.returncode, "`dibs version` takes no --url" in useless.stderr) == (64, True)
