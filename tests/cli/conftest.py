"""The command line as its users have it: real processes on a store of the test's own."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """Runs `leasehold`; whatever it started and still runs is killed afterwards."""
    line = Cli(tmp_path)
    yield line
    line.kill_all()


@pytest.fixture(autouse=True)
def _signals_as_at_a_prompt() -> Iterator[None]:
    """What runs in the background was started with signals ignored, and would hand that on."""
    heard = dict.fromkeys((signal.SIGHUP, signal.SIGQUIT), signal.SIG_DFL)
    before = {number: signal.signal(number, action) for number, action in heard.items()}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, action in before.items():
        signal.signal(number, action)
