"""A walk through the whole dashboard by pointer, as an operator takes it: in light, in dark, on a phone."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from dibs.model import MANY
from tests.server.ui.held import Held
from tests.server.ui.visits import Visit
from tests.server.world import LONG, World

pytestmark = pytest.mark.once

expect.set_options(timeout=LONG * 1000)

LOOKS: dict[str, dict[str, Any]] = {
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


@pytest.fixture(scope="module")
def held(world: World) -> Held:
    held = Held(world)
    held.release("lock:jobs/early", held.take("lock:jobs/early", "worker-1"))
    held.take("lock:jobs/nightly", "worker-7", note="report for March")
    held.wait("lock:jobs/nightly", "worker-8@build-host-4.eu-west.example.org", priority=5)
    held.take("lock:" + "tenants/acme-corporation-emea/" * 4 + "export", "exporter-" * 8)
    for number in range(5):
        held.take("semaphore:gpu", f"train-{number}", capacity=8)
    held.take("rwlock:catalog", "reader-1", capacity=MANY)
    held.take("leader:billing", "node-a", note="eu-west")
    held.wait("leader:billing", "node-b")
    return held


@pytest.fixture(params=list(LOOKS))
def page(request: pytest.FixtureRequest, world: World, browser: Browser) -> Iterator[Page]:
    with Visit.of(browser, world, **LOOKS[request.param]) as visit:
        yield visit.page
    assert visit.complaints == []


def test_a_walk(request: pytest.FixtureRequest, page: Page, world: World, held: Held) -> None:
    look = request.node.callspec.params["page"]
    name = f"legacy/{look}"
    held.take(f"lock:{name}", "a host that is gone")
    page.goto("/")
    page.get_by_text("No key yet?").click()
    expect(page.locator("form pre")).to_be_visible()
    assert page.evaluate(_MISPLACED) == []
    page.get_by_label("API key").fill(world.admin_key)
    page.get_by_role("button", name="Sign in").click()
    for title, part in VIEWS.items():
        page.get_by_role("navigation").get_by_role("link", name=title).click()
        expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
        expect(page).to_have_title(f"{title} · Dibs")
        expect(page.locator(part).nth(0)).to_be_visible()
        assert page.evaluate(_MISPLACED) == [], title
    assert page.evaluate(_COLOURS) == ("dark" if look == "dark" else "light")
    page.get_by_role("navigation").get_by_role("link", name="Now").click()
    page.get_by_label("Prefix").fill(name)
    expect(page.locator(VIEWS["Now"])).to_have_count(1)
    page.get_by_role("link", name=name).click()
    expect(page.locator(".hold")).to_contain_text("a host that is gone")
    assert page.evaluate(_MISPLACED) == []
    page.get_by_role("button", name="Force release…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("type the name").fill(name)
    dialog.get_by_label("Reason").fill("its host is gone")
    dialog.get_by_label("Free it at once").check()
    assert page.evaluate(_MISPLACED) == []
    dialog.get_by_role("button", name="End the lease").click()
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_text("Free. The last token was")).to_be_visible()
    expect(page.locator(".event").nth(0)).to_contain_text("its host is gone")
    page.get_by_role("navigation").get_by_role("link", name="Audit").click()
    expect(page.locator(".event").filter(has_text=name)).to_contain_text("force release")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("alert")).to_have_text("You are signed out.")
    assert name not in page.content()
