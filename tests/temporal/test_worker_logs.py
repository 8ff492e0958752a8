"""How the worker's command tells what it and others log: with the time, and an exception with its trace."""

import json
import logging
import re
from collections.abc import Iterator

import pytest

from dibs.cli.temporal import LOGGERS, TimedMessages, show_logs

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {name: list(logging.getLogger(name).handlers) for name in LOGGERS}
    yield
    for name, handlers in before.items():
        logging.getLogger(name).handlers = handlers


def fail() -> None:
    try:
        raise ValueError("no such slot")
    except ValueError:
        logging.getLogger("temporalio.worker").exception("A task failed")


def test_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    messages = TimedMessages()
    show_logs(messages)
    messages.show("ready", "ready")
    fail()
    first, second, *trace = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00 dibs: ready", first)
    assert second.endswith(" dibs: A task failed")
    assert (trace[0], trace[-1]) == (
        "Traceback (most recent call last):",
        "ValueError: no such slot",
    )


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_logs(TimedMessages(as_json=True))
    fail()
    logging.getLogger("temporalio.core").warning("gRPC call poll retried 6 times")
    logging.getLogger("temporalio.core").warning("something else")
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [each["message"] for each in said] == ["A task failed", "something else"]
    assert all("time" in each for each in said)
    assert said[0]["event"] == "error"
    assert said[0]["traceback"].endswith("ValueError: no such slot")
    assert (said[1]["event"], said[1]["logger"]) == ("warning", "temporalio.core")
