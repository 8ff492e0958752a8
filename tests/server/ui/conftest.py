"""Fixtures of the dashboard's tests: servers, and a headless browser."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.server.ui.dashboard import OPTIONS, Visit
from tests.server.world import World
from tests.servers.binaries import browser_program


@pytest.fixture
def start() -> Iterator[Callable[..., World]]:
    with ExitStack() as stack:

        def start(folder: Path | None = None, **settings: Any) -> World:
            return stack.enter_context(World.over(folder, **settings))

        yield start


@pytest.fixture(scope="package")  # no longer: playwright's loop would be in the way of other tests'
def browser() -> Iterator[Browser]:
    program = browser_program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program.path, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def visit(world: World, browser: Browser) -> Iterator[Visit]:
    """A browser's profile of its own with one page open, which must report no errors."""
    with Visit.of(browser, world) as visit:
        yield visit
