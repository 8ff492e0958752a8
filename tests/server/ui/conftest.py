"""What tests of the dashboard have: a server, and a headless browser that visits it.

| fixture | is |
|---|---|
| `world` | a server over memory, shared by the module |
| `browser` | a Chromium, shared by all that stand side by side in the folder |
| `visit` | a profile of its own with one page open, which must give no cause for complaint by the end |
| `profile` | a profile on the wire, without a browser |
| `enter` | makes such profiles that have signed in |
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.server.ui.profiles import Profile
from tests.server.ui.visits import OPTIONS, Visit
from tests.server.world import World
from tests.servers.binaries import browser_program


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World.over()
    yield world
    world.close()


@pytest.fixture(scope="package")  # no longer: playwright's loop would be in the way of other tests'
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


@pytest.fixture
def enter(world: World) -> Iterator[Callable[..., Profile]]:
    """A profile that has signed in with a key of these scopes; an administrator's without."""
    found: list[Profile] = []

    def enter(*scopes: str, at: World = world, **key: Any) -> Profile:
        found.append(profile := Profile(at))
        answer = profile.sign_in(at.key(*scopes, **key) if scopes else at.admin_key)
        assert answer.status_code == 200, answer.text
        return profile

    yield enter
    for each in found:
        each.client.close()


@pytest.fixture
def profile(world: World) -> Iterator[Profile]:
    """One that has not signed in."""
    profile = Profile(world)
    yield profile
    profile.client.close()
