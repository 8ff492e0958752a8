"""Fixtures of the dashboard's tests: servers, profiles on the wire, and a headless browser."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.server.ui.dashboard import OPTIONS, Profile, Visit
from tests.server.world import World
from tests.servers.binaries import browser_program


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A server over memory, shared by the module."""
    with closing(World.over()) as world:
        yield world


@pytest.fixture
def start() -> Iterator[Callable[..., World]]:
    with ExitStack() as stack:

        def start(folder: Path | None = None, **settings: Any) -> World:
            return stack.enter_context(closing(World.over(folder, **settings)))

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


@pytest.fixture
def profiles() -> Iterator[Callable[[World], Profile]]:
    """Makes profiles that have not signed in."""
    with ExitStack() as stack:

        def make(world: World) -> Profile:
            profile = Profile(world)
            stack.enter_context(profile.client)
            return profile

        yield make


@pytest.fixture
def profile(world: World, profiles: Callable[[World], Profile]) -> Profile:
    return profiles(world)


@pytest.fixture
def enter(world: World, profiles: Callable[[World], Profile]) -> Callable[..., Profile]:
    """Makes profiles that have signed in with a key of these scopes; an administrator's without."""

    def enter(*scopes: str, at: World = world) -> Profile:
        profile = profiles(at)
        answer = profile.sign_in(at.key(*scopes) if scopes else at.admin_key)
        assert answer.status_code == 200, answer.text
        return profile

    return enter
