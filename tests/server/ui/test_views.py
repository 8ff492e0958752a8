"""The dashboard in a real browser, over a real server: each view shows what is there, as it changes.

It never looks live when its server has gone away, or its session has ended.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from dibs.model import Acquire
from dibs.server.auth.policy import Principal
from dibs.stores.http.names import encoded
from tests.server.inside import ticket_of
from tests.server.ui.dashboard import Held, Visit, expect_live, figure, go, row
from tests.server.world import World, lock
from tests.servers.waiting import wait_until


@pytest.fixture
def held(world: World) -> Held:
    """What is held before anybody looks."""
    held = Held(world)
    held.release("lock:jobs/nightly", held.take("lock:jobs/nightly", "an earlier one"))
    held.take("lock:jobs/nightly", "worker-7", note="report for March")
    held.take("lock:deploy/production", "ci-12")
    held.wait("lock:deploy/production", "ci-4")
    held.wait("lock:deploy/production", "alice", note="hotfix", priority=5)
    for number in range(5):
        held.take("semaphore:gpu", f"train-{number}", capacity=300)
    held.take("semaphore:gpu", "big", capacity=300, units=2)
    held.take("leader:billing", "node-a", note="eu-west")
    held.wait("leader:billing", "node-b")
    return held


@pytest.fixture
def page(visit: Visit, held: Held) -> Page:
    visit.sign_in()
    return visit.page


def fill_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def lock_page(kind: str, name: str) -> str:
    return f"lock/{kind}/{encoded(name.encode())}"


def test_each_view_shows_what_is_there(page: Page, held: Held) -> None:
    expect(figure(page, "held")).to_have_text("4 held")
    expect(figure(page, "waiting")).to_have_text("3 waiting")
    nightly = row(page, "jobs/nightly")
    expect(nightly).to_contain_text("worker-7")
    expect(nightly).to_contain_text("report for March")
    expect(nightly.locator(".left")).to_have_text(re.compile(r"9 min \d+ s"))
    expect(nightly.locator(".waiting")).to_be_empty()
    expect(row(page, "deploy/production").locator(".waiting")).to_have_text("2")
    expect(row(page, "gpu")).to_contain_text("train-0and 5 more7 of 300")

    go(page, "queues")
    cards = page.get_by_role("article")
    expect(cards).to_have_count(2)
    expect(cards.nth(0)).to_contain_text("deploy/production")
    expect(cards.nth(0)).to_contain_text("ci-12")
    expect(cards.nth(0).locator(".people.line li")).to_contain_text(["alice", "ci-4"])
    expect(cards.nth(0)).to_contain_text("priority 5")

    go(page, "leaders")
    expect(cards).to_contain_text("node-a")
    expect(cards).to_contain_text("eu-west")
    expect(cards.get_by_role("listitem")).to_contain_text(["node-b"])

    go(page, "pools")
    expect(cards).to_contain_text("7 of 300 taken")
    expect(cards.get_by_role("listitem")).to_have_count(300)
    expect(cards.locator("[data-state=held]")).to_have_count(7)
    cards.get_by_role("listitem").nth(6).hover()
    expect(cards).to_contain_text("Slot 6: big, token")

    lease = held.take("lock:short", "too slow", ttl=1.0)
    go(page, "timeline")
    expect(page.locator(".lane-names").get_by_text("slot 6")).to_be_visible()
    blocks = page.locator(".block[data-how=held] title")
    expect(blocks.filter(has_text="worker-7, token")).to_have_count(1)
    expect(page.locator(".block[data-how=released]")).not_to_have_count(0)
    expired = page.locator(".block[data-how=expired] title").filter(has_text="too slow")
    expect(expired).to_contain_text("expired at")
    assert lease not in page.content()

    go(page, lock_page("lock", "deploy/production"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("deploy/production")
    expect(page.locator(".lock .hold")).to_contain_text("ci-12")
    expect(page.get_by_role("heading", name="Queue: 2 waiting")).to_be_visible()
    expect(page.locator("li.event")).to_have_count(3)
    go(page, lock_page("lock", "nobody/ever"))
    expect(page.get_by_text("Free. It was never granted.")).to_be_visible()


NOTE_FIGURES = """() => {
    window.noted = [];
    const figures = "[data-figure=held], [data-figure=expiring]";
    const shown = () => [...document.querySelectorAll(figures)].map((each) => each.textContent);
    const note = () => noted.push(shown().join(", "));
    new MutationObserver(note).observe(document, { childList: true, subtree: true });
}"""


def test_the_summary_counts_what_expires_and_what_was_lost(page: Page, held: Held) -> None:
    go(page, "now?prefix=summed/")
    expect(page.get_by_text("No match")).to_be_visible()
    held.take("lock:summed/kept", "is alive")
    page.evaluate(NOTE_FIGURES)
    held.take("lock:summed/dies", "was killed", ttl=6)  # it is about to expire for a fifth of that
    expect(figure(page, "held")).to_have_text("2 held")
    expect(figure(page, "lost")).to_have_text(re.compile(r"1 lost in the last \d+ (s|min)"))
    expect(figure(page, "held")).to_have_text("1 held")
    expect(figure(page, "expiring")).to_have_text("0 expiring")
    assert {"2 held, 0 expiring", "2 held, 1 expiring"} <= set(page.evaluate("noted"))
    figure(page, "lost").click()
    expect(page.locator("li.event")).to_have_count(1)
    expect(page.locator("li.event")).to_contain_text("was killed")


def test_filters_are_kept_in_the_address_and_events_can_be_paused(page: Page, held: Held) -> None:
    go(page, "now")
    page.get_by_label("Prefix").fill("deploy/")
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_label("Kind").select_option("semaphore")
    expect(page.get_by_text("No match")).to_be_visible()
    assert page.url.endswith("#/now?prefix=deploy%2F&kind=semaphore")
    page.reload()
    expect(page.get_by_label("Prefix")).to_have_value("deploy/")
    page.get_by_label("Kind").select_option("")
    expect(row(page, "deploy/production")).to_be_visible()

    go(page, "events?prefix=deploy/")
    lines = page.locator("li.event")
    expect(lines).to_have_count(3)
    lease = held.take("lock:deploy/staging", "ci-40")
    expect(lines.nth(0)).to_contain_text("deploy/staging")
    page.get_by_role("button", name="Pause").click()
    held.release("lock:deploy/staging", lease)
    expect(page.get_by_text("paused, 1 since")).to_be_visible()
    expect(lines).to_have_count(4)
    page.get_by_role("button", name="Resume").click()
    expect(lines.nth(0)).to_contain_text("released")


def test_a_reader_sees_its_own_and_can_end_nothing(world: World, page: Page, held: Held) -> None:
    """In a browser where an administrator has just signed out."""
    go(page, "events")
    expect(page.locator("li.event").filter(has_text="worker-7").nth(0)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    fill_in(page, world.key("read", prefixes=[b"deploy/"]))
    expect(page.locator("li.event").filter(has_text="ci-12").nth(0)).to_be_visible()
    expect(page.get_by_text("worker-7")).to_have_count(0)
    expect(page.get_by_role("link", name="Audit")).to_have_count(0)
    go(page, "now")
    expect(figure(page, "held")).to_have_text("1 held")
    row(page, "deploy/production").get_by_role("link").click()
    expect(page.locator(".lock .hold")).to_be_visible()
    expect(page.get_by_role("button", name="Force release…")).to_be_hidden()
    go(page, lock_page("lock", "jobs/nightly"))
    expect(page.locator("p.state")).not_to_be_empty()
    expect(page.get_by_text("worker-7")).to_have_count(0)


PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "is_mobile": True}

VIEWS = {"Queues": ".card", "Pools": ".card", "Leaders": ".card", "Timeline": ".block"}
VIEWS |= {"Events": ".event", "Audit": ".event", "Now": ".row:not(.head)"}
"""Entries of the navigation, and what each view shows."""

MISPLACED = """() => {
    const wrong = [];
    for (const each of document.querySelectorAll("html, main, .virtual"))
        if (each.scrollWidth > each.clientWidth) wrong.push(`scrolls sideways: ${each.tagName}`);
    for (const each of document.querySelectorAll("nav a, button, input, select, h1")) {
        const { left, right } = each.getBoundingClientRect();
        if (left < 0 || right > innerWidth) wrong.push(`outside: ${each.textContent}`);
    }
    return wrong;
}"""


def end_lease(page: Page, name: str, *, at_once: bool) -> None:
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The holder may still be running.")
    end = dialog.get_by_role("button", name="End the lease")
    typed = dialog.get_by_label("type the name")
    dialog.get_by_label("Reason").fill("its host is gone")
    typed.fill(name[:-1])
    expect(end).to_be_disabled()
    typed.fill(name)
    dialog.get_by_label("Free it at once").set_checked(at_once)
    end.click()
    expect(dialog).to_contain_text("Revoked one lease")
    dialog.get_by_role("button", name="Close").click()


def test_a_walk(world: World, browser: Browser, held: Held) -> None:
    name = "legacy/report"
    held.take(f"lock:{name}", "a host that is gone", note="why " * 100)
    held.wait(f"lock:{name}", "exporter-" * 25, priority=5)
    held.take(b"lock:" + b"long/" * 100, "owner-" * 30)
    for number in range(2):
        held.take("semaphore:licences", f"seat-{number}", capacity=2)
    with Visit.of(browser, world, **PHONE) as visit:
        page = visit.page
        navigation = page.get_by_role("navigation")

        def check_layout() -> None:
            assert page.evaluate(MISPLACED) == [], page.title()

        page.goto("/")
        check_layout()
        fill_in(page, "dibs_000000000000_0000000000000000000000")
        expect(page.get_by_role("alert")).to_contain_text("wrong, expired or revoked")
        fill_in(page, world.admin_key)
        for title, part in VIEWS.items():
            navigation.get_by_role("link", name=title).click()
            expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
            expect(page.locator(part).nth(0)).to_be_visible()
            check_layout()
        page.get_by_label("Prefix").fill(name)
        expect(page.locator(VIEWS["Now"])).to_have_count(1)
        page.get_by_role("link", name=name).click()
        expect(page.locator(".hold")).to_contain_text("a host that is gone")
        check_layout()
        page.get_by_role("button", name="Force release…").click()
        check_layout()
        end_lease(page, name, at_once=False)
        revoked = page.locator(".hold").filter(has_text="a host that is gone")
        expect(revoked).to_have_count(1)  # until its ttl ends
        expect(page.locator(".event").filter(has_text="its host is gone").nth(0)).to_be_visible()
        go(page, lock_page("semaphore", "licences"))
        seat = page.locator(".lock .hold").filter(has_text="seat-1")
        seat.get_by_role("button", name="End this lease…").click()
        end_lease(page, "licences", at_once=True)
        expect(page.locator(".lock .hold")).to_have_count(1)
        expect(page.locator(".lock .hold")).to_contain_text("seat-0")
        navigation.get_by_role("link", name="Audit").click()
        expect(page.locator(".event").filter(has_text=name)).to_contain_text("force release")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("alert")).to_have_text("You are signed out.")
        assert name not in page.content()


MANY = 1_200
ROWS = 80
"""Of which more than this are never in the document."""


def take_many(world: World) -> None:
    """Through the server, so it knows of them."""
    somebody = Principal("", "", frozenset(), ())
    for begin in range(0, MANY, 400):  # each has its own time
        taken = [
            Acquire(b"lock:jobs/%06d" % each, f"{each:0>22}", f"worker-{each % 97}", 3600.0)
            for each in range(begin, begin + 400)
        ]
        world.do(partial(world.server.leases.ask_all, somebody, taken))


SCROLL = """([top, name]) => {
    document.querySelector(".virtual").scrollTop = top;
    return [...document.querySelectorAll("a")].some((each) => each.textContent === name);
}"""


def test_the_list_is_windowed_to_its_end_and_shows_what_changes(world: World, visit: Visit) -> None:
    take_many(world)
    visit.sign_in()
    page, held = visit.page, Held(world)
    last = page.get_by_role("link", name=f"jobs/{MANY - 1:06}")

    def check_rows() -> None:
        assert page.locator("[role=row]").count() < ROWS

    page.get_by_role("link", name="jobs/000000").focus()
    page.keyboard.press("End")
    expect(last).to_be_focused(timeout=120_000)  # it is counted in a part of the time only
    check_rows()
    expect(page.locator("[data-figure=held]")).to_have_text(f"about {MANY:,} held")

    # again and again, as the list may go to its end once more
    page.wait_for_function(SCROLL, arg=[38 * 800, "jobs/000805"])
    middle = page.get_by_role("link", name="jobs/000805", exact=True)
    expect(middle).to_be_visible()
    held.take("lock:jobs/000805-and-a-half", "somebody new")
    held.release("lock:jobs/000805", f"{805:0>22}")
    new = page.get_by_role("row").filter(has_text="jobs/000805-and-a-half")
    expect(new).to_contain_text("somebody new")
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


def test_a_restart_is_shown_and_mended(
    browser: Browser, start: Callable[..., World], tmp_path: Path
) -> None:
    before = start(tmp_path)
    key = before.key("read")
    Held(before).take("lock:before", "one")
    with Visit.of(browser, before) as visit:
        page = visit.page
        visit.sign_in(key)
        expect_live(page)
        expect(page.get_by_role("link", name="before")).to_be_visible()
        before.close()
        expect(page.get_by_role("alert")).to_contain_text("The service does not answer.")
        expect(page.get_by_text("reconnecting", exact=True)).to_be_visible()
        after = start(tmp_path, listen=before.url.partition("//")[2])
        expect_live(page)
        expect(page.get_by_role("alert")).to_be_hidden()
        assert after.client(key=after.key("acquire")).post(lock("after")).status_code == 200
        expect(page.get_by_role("link", name="after")).to_be_visible()
        after.revoke(key)
        expect(page.get_by_label("API key")).to_be_focused()
        expect(page.get_by_role("alert")).to_contain_text("Your session has ended")


def test_a_ticket_can_be_tried_again_until_it_is_refused(world: World, visit: Visit) -> None:
    page = visit.page
    page.clock.install()
    link = f"/#ticket={world.do(lambda: ticket_of(world))}"
    page.route("**/ui/session", lambda route: route.abort())
    page.goto(link)
    expect(page.get_by_text("The service does not answer; trying again.")).to_be_visible()
    page.unroute("**/ui/session")
    page.clock.run_for(2_000)
    expect_live(page)
    page.context.clear_cookies()
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_role("alert")).to_contain_text("was used already, or is too old")
    page.wait_for_selector("#key")


HIDE = """is => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => is });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_a_page_that_nobody_looks_at_lets_go_of_its_stream(world: World, visit: Visit) -> None:
    key = world.key("read")
    account = world.server.quotas.of(key.split("_")[1])
    page = visit.page
    page.clock.install()
    visit.sign_in(key)
    expect_live(page)
    assert account.event_streams == 1
    page.evaluate(HIDE, True)
    page.clock.fast_forward(31_000)
    expect(page.get_by_text("reconnecting", exact=True)).to_be_visible()
    wait_until(lambda: account.event_streams == 0, "the stream has ended")
    Held(world).take("lock:while-away", "somebody")
    page.evaluate(HIDE, False)
    expect_live(page)
    expect(page.get_by_role("link", name="while-away")).to_be_visible()
