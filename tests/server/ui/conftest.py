"""What tests of the dashboard have: a server, and a headless browser that visits it.

| fixture | is |
|---|---|
| `world` | a server over memory, shared by the module |
| `browser` | a Chromium, likewise |
| `visit` | a profile of its own with one page open, which must give no cause for complaint by the end |
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.server.ui.visits import OPTIONS, Visit
from tests.server.world import World
from tests.servers.binaries import browser_program


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World.over()
    yield world
    world.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = browser_program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program.path, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def visit(world: World, browser: Browser) -> Iterator[Visit]:
    with Visit.of(browser, world) as visit:
        yield visit
    assert visit.complaints == []
