"""Lists of the dashboard: many locks that change, and how long their leases are."""

from functools import partial

from playwright.sync_api import Page, expect

from dibs.model import Acquire
from dibs.server.auth.policy import Principal
from tests.server.ui.dashboard import Held, Visit
from tests.server.world import World

MANY = 1_200
ROWS = 80
"""More than this are never in the document."""


def take_many(world: World) -> None:
    """Through the server, so it knows of them."""
    somebody = Principal("", "", frozenset(), ())
    for begin in range(0, MANY, 400):  # each has its own time
        taken = [
            Acquire(b"lock:jobs/%06d" % each, f"{each:0>22}", f"worker-{each % 97}", 3600.0)
            for each in range(begin, begin + 400)
        ]
        world.do(partial(world.server.leases.ask_all, somebody, taken))


def scroll(page: Page, row: int) -> None:
    """Go to a row, once the list has grown so long."""
    go = """top => { const list = document.querySelector(".virtual"); list.scrollTop = top;
        return list.scrollTop >= top - 2 * list.clientHeight }"""
    page.wait_for_function(go, arg=38 * row)


def test_the_list_is_windowed_to_its_end_and_shows_what_changes(world: World, visit: Visit) -> None:
    take_many(world)
    visit.sign_in()
    page, held = visit.page, Held(world)
    first = page.get_by_role("link", name="jobs/000000")
    last = page.get_by_role("link", name=f"jobs/{MANY - 1:06}")
    expect(first).to_be_visible()

    def check_rows() -> None:
        assert page.evaluate("document.querySelectorAll('[role=row]').length") < ROWS

    first.focus()
    page.keyboard.press("End")
    expect(last).to_be_focused(timeout=120_000)  # it is counted in a part of the time only
    check_rows()
    expect(page.locator("[data-figure=held]")).to_have_text(f"about {MANY:,} held")

    scroll(page, 800)
    middle = page.get_by_role("link", name="jobs/000805", exact=True)
    expect(middle).to_be_visible()
    held.take("lock:jobs/000805-and-a-half", "somebody new")
    new = page.get_by_role("row").filter(has_text="jobs/000805-and-a-half")
    expect(new).to_contain_text("somebody new")
    held.release("lock:jobs/000805", f"{805:0>22}")
    expect(middle).to_have_count(0)
    check_rows()


LENGTHS = """async (looks) => {
    const { statusOf, isExpiring } = await import('/ui/status.js');
    return looks.map(([lease, asked, held_for, expires_in]) => {
        const holder = { lease, owner: 'me', token: 1, held_for, expires_in };
        const [hold] = statusOf({ key: 'bG9jazp4', capacity: 1, holders: [holder] }, asked).holders;
        return [hold.whole, isExpiring(hold, asked)];
    });
}"""


def test_a_hold_that_is_renewed_is_not_expiring_however_long_it_lasts(visit: Visit) -> None:
    """The length of a lease is learnt from what is left after a renewal."""
    visit.page.goto("/")
    looks = {
        ("unrenewed", 100, 20, 40): [60, False],
        ("unrenewed", 130, 50, 10): [60, True],
        ("renewed", 200, 9_000, 12): [12, False],  # first seen in the midst of its life
        ("renewed", 208, 9_008, 4): [12, False],
        ("renewed", 212, 9_012, 30): [30, False],
        ("renewed", 237, 9_037, 5): [30, True],  # no longer renewed
    }
    assert visit.page.evaluate(LENGTHS, list(looks)) == list(looks.values())
