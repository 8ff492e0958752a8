"""The dashboard with 12,000 locks: only the visible part of the list is in the document."""

from collections.abc import Iterator
from functools import partial

import pytest
from playwright.sync_api import Browser, Page, expect

from dibs.model import Acquire
from dibs.server.auth.policy import Principal
from tests.server.inside import ask_all
from tests.server.ui.dashboard import Held, Visit
from tests.server.world import World

pytestmark = pytest.mark.once

MANY = 12_000
AT_ONCE = 500
ROWS = 80
"""More than this are never in the document."""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A server with all those locks; all were taken through it, so it knows of them."""
    world = World.over()

    somebody = Principal("", "", frozenset(), ())
    for begin in range(0, MANY, AT_ONCE):
        taken = [
            Acquire(b"lock:jobs/%06d" % each, f"{each:0>22}", f"worker-{each % 97}", 3600.0)
            for each in range(begin, begin + AT_ONCE)
        ]
        world.do(partial(ask_all, world, somebody, taken))  # each has its own time
    yield world
    world.close()


@pytest.fixture(scope="module")
def inside(world: World, browser: Browser) -> Iterator[Visit]:
    with Visit.of(browser, world) as visit:
        visit.sign_in()
        yield visit


@pytest.fixture
def page(inside: Visit) -> Page:
    """The list, at its beginning."""
    page = inside.page
    page.evaluate("location.hash = '#/now'")
    scroll(page, 0)
    expect(page.get_by_role("link", name="jobs/000000")).to_be_visible()
    return page


def scroll(page: Page, row: int) -> None:
    """Go to a row, once the list has grown so long."""
    go = """top => { const list = document.querySelector(".virtual"); list.scrollTop = top;
        return list.scrollTop >= top - 2 * list.clientHeight }"""
    page.wait_for_function(go, arg=38 * row)


def rows(page: Page) -> int:
    count: int = page.evaluate("document.querySelectorAll('[role=row]').length")
    return count


def test_the_list_is_windowed_to_its_end(page: Page) -> None:
    first = page.get_by_role("link", name="jobs/000000")
    assert rows(page) < ROWS
    last = page.get_by_role("link", name=f"jobs/{MANY - 1:06}")
    first.focus()
    page.keyboard.press("End")
    expect(last).to_be_focused(timeout=120_000)  # it is counted in a part of the time only
    assert rows(page) < ROWS
    expect(page.locator("[data-figure=held]")).to_have_text("about 12,000 held")
    page.keyboard.press("Home")
    expect(first).to_be_focused()
    scroll(page, MANY)
    expect(last).to_be_visible()
    scroll(page, 0)
    first.focus()
    page.keyboard.press("PageDown")
    page.keyboard.press("PageDown")
    expect(page.locator(".row:focus-within")).to_contain_text("worker-")
    assert rows(page) < ROWS


def test_what_changes_in_the_middle_is_seen(page: Page, world: World) -> None:
    scroll(page, 5_000)
    middle = page.get_by_role("link", name="jobs/005005", exact=True)
    expect(middle).to_be_visible()
    held = Held(world)
    held.take("lock:jobs/005005-and-a-half", "somebody new")
    new = page.get_by_role("row").filter(has_text="jobs/005005-and-a-half")
    expect(new).to_contain_text("somebody new")
    held.release("lock:jobs/005005", f"{5_005:0>22}")
    expect(middle).to_have_count(0)
    assert rows(page) < ROWS
