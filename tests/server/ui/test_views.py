"""The dashboard's views, in a real browser, over a real server: each shows what is there, as it changes."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from dibs.model import MANY
from dibs.stores.http.names import encoded
from tests.server.ui.dashboard import Held, Visit, figure, go, row
from tests.server.world import World

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def held(world: World) -> Held:
    """What is held before anybody looks."""
    held = Held(world)
    for _ in range(2):
        held.release("lock:jobs/nightly", held.take("lock:jobs/nightly", "an earlier one"))
    lease = held.take("lock:jobs/nightly", "worker-7", note="report for March")
    held.renew("lock:jobs/nightly", lease)
    held.take("lock:deploy/production", "ci-12")
    held.wait("lock:deploy/production", "ci-4")
    held.wait("lock:deploy/production", "alice", note="hotfix", priority=5)
    for number in range(5):
        held.take("semaphore:gpu", f"train-{number}", capacity=300)
    held.take("semaphore:gpu", "big", capacity=300, units=2)
    held.take("rwlock:catalog", "reader-1", capacity=MANY)
    held.take("rwlock:catalog", "reader-2", capacity=MANY)
    held.take("leader:billing", "node-a", note="eu-west")
    held.wait("leader:billing", "node-b")
    held.take("tasklock:imports", "importer")
    return held


@pytest.fixture(scope="module")
def inside(world: World, browser: Browser, held: Held) -> Iterator[Page]:
    """One visit for all that only look."""
    with Visit.of(browser, world) as visit:
        visit.sign_in()
        yield visit.page


@pytest.fixture
def page(inside: Page) -> Page:
    return inside


def lock_page(kind: str, name: str | bytes) -> str:
    raw = name.encode() if isinstance(name, str) else name
    return f"lock/{kind}/{encoded(raw)}"


def test_now_shows_what_is_held(page: Page) -> None:
    go(page, "now")
    expect(figure(page, "held")).to_have_text("6 held")
    expect(figure(page, "waiting")).to_have_text("3 waiting")
    expect(row(page, "jobs/nightly")).to_contain_text("worker-7")
    expect(row(page, "jobs/nightly")).to_contain_text("report for March")
    expect(row(page, "jobs/nightly").locator(".waiting")).to_be_empty()
    expect(row(page, "deploy/production").locator(".waiting")).to_have_text("2")
    expect(row(page, "gpu")).to_contain_text("train-0and 5 more7 of 300")
    expect(row(page, "catalog")).to_contain_text("reading")
    expect(row(page, "imports").locator(".left")).to_have_text(re.compile(r"9 min \d+ s"))
    since = row(page, "deploy/production").locator(".held .when")
    expect(since.locator(".exact")).to_be_hidden()
    since.hover()
    expect(since.locator(".exact")).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))


def test_grants_elsewhere_appear_by_themselves(page: Page, held: Held) -> None:
    go(page, "now")
    expect(row(page, "jobs/nightly")).to_be_visible()
    lease = held.take("lock:jobs/elsewhere", "somebody else")
    expect(row(page, "jobs/elsewhere")).to_contain_text("somebody else")
    held.release("lock:jobs/elsewhere", lease)
    expect(row(page, "jobs/elsewhere")).to_have_count(0)


def test_the_summary_counts_what_expires_and_what_was_lost(
    world: World, browser: Browser, held: Held
) -> None:
    with Visit.of(browser, world) as visit:
        page = visit.page
        visit.sign_in(open_page="/#/now?prefix=summed/")
        expect(page.get_by_text("No match")).to_be_visible()
        kept = held.take("lock:summed/kept", "is alive")
        held.take("lock:summed/dies", "was killed", ttl=6)
        expect(figure(page, "held")).to_have_text("2 held")
        expect(figure(page, "expiring")).to_have_text("0 expiring")
        expect(figure(page, "expiring")).to_have_text("1 expiring")
        expect(figure(page, "lost")).to_have_text(re.compile(r"1 lost in the last \d+ (s|min)"))
        expect(figure(page, "held")).to_have_text("1 held")
        expect(figure(page, "expiring")).to_have_text("0 expiring")
        figure(page, "lost").click()
        expect(page.locator("li.event")).to_have_count(1)
        expect(page.locator("li.event")).to_contain_text("was killed")
        held.release("lock:summed/kept", kept)


END_IS_VISIBLE = """link => {
    const text = link.querySelector(".name").lastChild;
    const range = document.createRange();
    range.setStart(text, text.length - 1);
    range.setEnd(text, text.length);
    return range.getBoundingClientRect().right <= link.getBoundingClientRect().right + 1;
}"""


def test_long_names_can_be_told_apart(page: Page, held: Held) -> None:
    name = "tenants/acme-corporation-emea/warehouse-{}/orders/export:2026001"
    leases = [(key, held.take(key, "x")) for key in (f"lock:{name.format(n)}" for n in (1, 2))]
    go(page, "now?prefix=tenants%2F")
    for number in (1, 2):
        link = page.get_by_role("link", name=f"warehouse-{number}/orders/export:2026001")
        expect(link).to_be_visible()
        assert link.evaluate(END_IS_VISIBLE)
    for key, lease in leases:
        held.release(key, lease)


def test_a_filter_is_kept_in_the_address(page: Page) -> None:
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


def test_queues_and_candidates_are_shown_in_order(page: Page) -> None:
    go(page, "queues")
    cards = page.get_by_role("article")
    expect(cards).to_have_count(2)
    first = cards.nth(0)
    expect(first).to_contain_text("deploy/production")
    expect(first.locator(".people.line li")).to_contain_text(["alice", "ci-4"])
    expect(first).to_contain_text("priority 5")
    expect(first).to_contain_text("ci-12")
    go(page, "leaders")
    expect(cards).to_contain_text("node-a")
    expect(cards).to_contain_text("eu-west")
    expect(cards.get_by_role("listitem")).to_contain_text(["node-b"])


def test_pools_are_shown_slot_by_slot(page: Page) -> None:
    go(page, "pools")
    card = page.get_by_role("article").filter(has_text="gpu")
    expect(card).to_contain_text("7 of 300 taken")
    slots = card.get_by_role("listitem")
    expect(slots).to_have_count(300)
    expect(card.locator("[data-state=held]")).to_have_count(7)
    slots.nth(6).hover()
    expect(card).to_contain_text("Slot 6: big, token")
    slots.nth(0).focus()
    page.keyboard.press("ArrowRight")
    expect(card).to_contain_text("Slot 1: train-1, token")


def test_the_timeline_has_a_lane_for_each_lock_or_slot(page: Page, held: Held) -> None:
    lease = held.take("lock:short", "too slow", ttl=1.0)
    go(page, "timeline")
    expect(page.locator(".lane-names").get_by_text("slot 6")).to_be_visible()
    expect(
        page.locator(".block[data-how=held] title").filter(has_text="worker-7, token")
    ).to_have_count(1)
    expect(page.locator(".block[data-how=released]")).not_to_have_count(0)
    expired = page.locator(".block[data-how=expired] title")
    expect(expired.filter(has_text="too slow")).to_contain_text("expired at")
    assert lease not in page.content()


def test_events_come_as_they_happen_and_can_be_paused(page: Page, held: Held) -> None:
    go(page, "events?prefix=deploy/")
    lines = page.locator("li.event")
    expect(lines).to_have_count(3)
    expect(lines.nth(0)).to_contain_text("queued")
    lease = held.take("lock:deploy/staging", "ci-40")
    expect(lines.nth(0)).to_contain_text("deploy/staging")
    page.get_by_role("button", name="Pause").click()
    held.release("lock:deploy/staging", lease)
    expect(page.get_by_text("paused, 1 since")).to_be_visible()
    expect(lines).to_have_count(4)
    page.get_by_role("button", name="Resume").click()
    expect(lines.nth(0)).to_contain_text("released")


def test_a_locks_page_has_all_about_it(page: Page) -> None:
    go(page, lock_page("lock", "deploy/production"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("deploy/production")
    expect(page.locator(".lock .hold")).to_contain_text("ci-12")
    expect(page.get_by_role("heading", name="Queue: 2 waiting")).to_be_visible()
    expect(page.locator("li.event")).to_have_count(3)
    go(page, lock_page("lock", "nobody/ever"))
    expect(page.get_by_text("Free. It was never granted.")).to_be_visible()


def test_one_holder_of_several_can_be_ended(page: Page, held: Held) -> None:
    for number in range(2):
        held.take("semaphore:licences", f"seat-{number}", capacity=2)
    go(page, lock_page("semaphore", "licences"))
    card = page.locator(".lock .hold").filter(has_text="seat-1")
    card.get_by_role("button", name="End this lease…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This ends the lease of seat-1")
    dialog.get_by_label("type the name").fill("licences")
    dialog.get_by_label("Reason").fill("a test")
    dialog.get_by_label("Free it at once").check()
    dialog.get_by_role("button", name="End the lease").click()
    dialog.get_by_role("button", name="Close").click()
    expect(page.locator(".lock .hold")).to_have_count(1)
    expect(page.locator(".lock .hold")).to_contain_text("seat-0")


def test_a_reader_sees_its_directories_and_can_end_nothing(
    world: World, browser: Browser, held: Held
) -> None:
    with Visit.of(browser, world) as visit:
        page = visit.page
        visit.sign_in(world.key("read", prefixes=[b"deploy/"]), open_page="/")
        expect(row(page, "deploy/production")).to_be_visible()
        expect(figure(page, "held")).to_have_text("1 held")
        expect(page.get_by_role("link", name="Audit")).to_have_count(0)
        row(page, "deploy/production").get_by_role("link").click()
        expect(page.locator(".lock .hold")).to_be_visible()
        expect(page.get_by_role("button", name="Force release…")).to_be_hidden()
        go(page, lock_page("lock", "jobs/nightly"))
        expect(page.locator("p.state")).not_to_be_empty()
        expect(page.get_by_text("worker-7")).to_have_count(0)


def test_the_keyboard_alone_leads_everywhere(world: World, browser: Browser, held: Held) -> None:
    with Visit.of(browser, world) as visit:
        page = visit.page
        page.goto("/")
        expect(page.get_by_label("API key")).to_be_focused()
        page.keyboard.type(world.admin_key)
        page.keyboard.press("Enter")
        expect(row(page, "jobs/nightly")).to_be_visible()
        expect(page.get_by_role("main")).to_be_focused()
        page.reload()
        expect(row(page, "jobs/nightly")).to_be_visible()
        page.get_by_role("link", name="Skip to the content").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("main")).to_be_focused()
        page.get_by_label("Kind").focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        expect(row(page, "deploy/production").get_by_role("link")).to_be_focused()
        expect(row(page, "deploy/production").locator(".held .exact")).to_be_visible()
        page.keyboard.press("Enter")
        force = page.get_by_role("button", name="Force release…")
        expect(force).to_be_visible()
        for _ in range(3):
            page.keyboard.press("Tab")
            if force.evaluate("each => each === document.activeElement"):
                break
        expect(force).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_label("type the name")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(force).to_be_focused()


# ---- a walk through all of it by pointer, on several screens --------------------------------------

SCREENS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True},
}

VIEWS = {
    "Now": ".row:not(.head)",
    "Queues": ".card",
    "Pools": ".card",
    "Leaders": ".card",
    "Timeline": ".block",
    "Events": ".event",
    "Audit": ".event",
}
"""Entries of the navigation, and what each view shows."""

_MISPLACED = """() => {
    const wrong = [];
    const seen = (each) => each.checkVisibility() && each.getClientRects().length;
    for (const each of document.querySelectorAll("html, main, .virtual"))
        if (each.scrollWidth > each.clientWidth) wrong.push(`scrolls sideways: ${each.tagName}`);
    for (const each of [...document.querySelectorAll("nav a, button, input, select, h1")].filter(seen)) {
        const { left, right } = each.getBoundingClientRect();
        if (left < 0 || right > innerWidth) wrong.push(`outside: ${each.textContent}`);
        const { scrollWidth, clientWidth, tagName } = each;
        if (tagName === "BUTTON" && scrollWidth > clientWidth) wrong.push(`cut: ${each.textContent}`);
    }
    const pen = document.createElement("canvas").getContext("2d");
    for (const select of document.querySelectorAll("select")) {
        pen.font = getComputedStyle(select).font;
        const widest = Math.max(...[...select.options].map(({ text }) => pen.measureText(text).width));
        if (widest > select.clientWidth - 24) wrong.push(`no room for the choices of ${select.id}`);
    }
    const panels = [...document.querySelectorAll(".card, .hold, .empty, form")].filter(seen);
    for (const panel of panels)
        for (const part of [...panel.querySelectorAll("*:not(pre *)")].filter(seen))
            if (part.getBoundingClientRect().right > panel.getBoundingClientRect().right + 1)
                wrong.push(`beyond its panel: ${part.className} ${part.textContent}`);
    return wrong;
}"""

_COLOURS = """() => {
    const shades = ["ground", "ink"].map((name) => {
        const probe = document.createElement("i");
        probe.style.setProperty("color", `var(--${name})`);
        document.body.append(probe);
        const shade = getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3).map(Number);
        probe.remove();
        return shade.reduce((sum, part) => sum + part);
    });
    return shades[0] > shades[1] ? "light" : "dark";
}"""


@pytest.mark.parametrize("screen", SCREENS)
def test_a_walk(screen: str, world: World, browser: Browser, held: Held) -> None:
    name = f"legacy/{screen}"
    held.take(f"lock:{name}", "a host that is gone", note="why " * 100)
    held.wait(f"lock:{name}", "exporter-" * 25, priority=5)
    long = held.take(b"lock:" + b"long/" * 100, "owner-" * 30)
    with Visit.of(browser, world, **SCREENS[screen]) as visit:
        page = visit.page

        def check_layout() -> None:
            assert page.evaluate(_MISPLACED) == [], page.title()

        page.goto("/")
        page.get_by_text("No key yet?").click()
        expect(page.locator("form pre")).to_be_visible()
        check_layout()
        page.get_by_label("API key").fill("dibs_000000000000_0000000000000000000000")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("wrong, expired or revoked")
        page.get_by_label("API key").fill(world.admin_key)
        page.get_by_role("button", name="Sign in").click()
        for title, part in VIEWS.items():
            page.get_by_role("navigation").get_by_role("link", name=title).click()
            expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
            expect(page).to_have_title(f"{title} · Dibs")
            expect(page.locator(part).nth(0)).to_be_visible()
            check_layout()
        assert page.evaluate(_COLOURS) == ("dark" if screen == "dark" else "light")
        page.get_by_role("navigation").get_by_role("link", name="Now").click()
        page.get_by_label("Prefix").fill(name)
        expect(page.locator(VIEWS["Now"])).to_have_count(1)
        page.get_by_role("link", name=name).click()
        expect(page.locator(".hold")).to_contain_text("a host that is gone")
        check_layout()
        page.get_by_role("button", name="Force release…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("The holder may still be running.")
        end = dialog.get_by_role("button", name="End the lease")
        dialog.get_by_label("Reason").fill("its host is gone")
        dialog.get_by_label("type the name").fill(name[:-1])
        expect(end).to_be_disabled()
        dialog.get_by_label("type the name").fill(name)
        if at_once := screen == "phone":
            dialog.get_by_label("Free it at once").check()
        check_layout()
        end.click()
        expect(dialog).to_contain_text("Revoked one lease")
        dialog.get_by_role("button", name="Close").click()
        revoked = page.locator(".hold").filter(has_text="a host that is gone")
        expect(revoked).to_have_count(0 if at_once else 1)
        expect(page.locator(".event").filter(has_text="its host is gone").nth(0)).to_be_visible()
        page.get_by_role("navigation").get_by_role("link", name="Audit").click()
        expect(page.locator(".event").filter(has_text=name)).to_contain_text("force release")
        go(page, lock_page("semaphore", "gpu"))
        expect(page.locator(".lock .hold").nth(0)).to_be_visible()
        check_layout()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("alert")).to_have_text("You are signed out.")
        assert name not in page.content()
    held.release(b"lock:" + b"long/" * 100, long)
