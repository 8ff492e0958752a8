"""The dashboard when its server goes away, and when its session ends: it never looks live when it is not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from dibs.server.config import ServerConfig
from tests.server.inside import keys_of, quotas_of, ticket_of
from tests.server.ui.held import Held
from tests.server.ui.visits import Visit
from tests.server.world import LONG, World

pytestmark = pytest.mark.once

expect.set_options(timeout=LONG * 1000)


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[World]:
    """A server whose store and records outlive it."""
    world = World.over(tmp_path)
    yield world
    world.close()


def test_a_restart_is_shown_and_mended(lasting: World, browser: Browser) -> None:
    Held(lasting).take("lock:before", "one")
    with Visit.of(browser, lasting) as visit:
        page = visit.page
        visit.sign_in()
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="before")).to_be_visible()
        port = int(lasting.url.rpartition(":")[2])
        lasting.close()
        expect(page.get_by_role("alert")).to_contain_text("The service does not answer.")
        expect(page.get_by_text("reconnecting", exact=True)).to_be_visible()
        moving = "document.getAnimations().filter(each => each.playState === 'running').length"
        assert page.evaluate(moving) == 0
        again = World(ServerConfig(listen=f"127.0.0.1:{port}", leases=lasting.config.leases))
        try:
            expect(page.get_by_text("live", exact=True)).to_be_visible()
            expect(page.get_by_role("alert")).to_be_hidden()
            again_key = again.key("acquire")
            with again.client(key=again_key) as client:
                assert client.post("/v1/locks/base64:YWZ0ZXI").status_code == 200
            expect(page.get_by_role("link", name="after")).to_be_visible()
        finally:
            again.close()
    assert visit.complaints == []


def test_a_revoked_key_signs_out(world: World, browser: Browser) -> None:
    key = world.key("read", name="to be revoked")
    with Visit.of(browser, world) as visit:
        page = visit.page
        visit.sign_in(key)
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        key_id = key.split("_")[1]
        world.do(lambda: keys_of(world).revoke(key_id))
        expect(page.get_by_label("API key")).to_be_focused()
        expect(page.get_by_role("alert")).to_contain_text("Your session has ended")
    assert visit.complaints == []


_FITS = """() => {
    const card = document.querySelector("form");
    const edge = card.getBoundingClientRect().right;
    return [...card.children].every((each) => each.getBoundingClientRect().right <= edge);
}"""


def test_signing_out_leaves_nothing(world: World, browser: Browser) -> None:
    Held(world).take("lock:secret-name", "somebody")
    with Visit.of(browser, world) as visit:
        page = visit.page
        visit.sign_in()
        expect(page.get_by_role("link", name="secret-name")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("alert")).to_have_text("You are signed out.")
        assert "secret-name" not in page.content()
        page.reload()
        expect(page.get_by_label("API key")).to_be_visible()
        page.get_by_text("No key yet?").click()
        expect(page.locator("form pre")).to_be_visible()
        assert page.evaluate(_FITS), "the help stays inside the card"
        page.get_by_label("API key").fill("dibs_000000000000_0000000000000000000000")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("wrong, expired or revoked")
        stored = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
        assert page.evaluate(stored) == '[{},{},""]'
    assert visit.complaints == []


def test_nothing_held_says_what_to_do(browser: Browser) -> None:
    world = World.over()
    try:
        with Visit.of(browser, world) as visit:
            visit.sign_in()
            expect(visit.page.get_by_role("heading", name="Nothing is held")).to_be_visible()
            expect(visit.page.locator("pre")).to_contain_text("dibs run jobs/first")
        assert visit.complaints == []
    finally:
        world.close()


def problem(status: int, detail: str) -> Callable[[Route], None]:
    """Somebody between who answers, instead of the service."""
    return lambda route: route.fulfill(status=status, json={"detail": detail})


@pytest.mark.parametrize(
    ("instead", "told"),
    [
        (lambda route: route.abort(), "The service does not answer; trying again."),
        (problem(503, "its records are away"), "Its records are away; trying again."),
    ],
    ids=["no answer", "503"],
)
def test_a_ticket_is_good_once_the_service_is_back(
    world: World, visit: Visit, instead: Callable[[Route], None], told: str
) -> None:
    page = visit.page
    page.clock.install()
    page.route("**/ui/session", instead)
    page.goto(f"/#ticket={world.do(lambda: ticket_of(world))}")
    expect(page.get_by_text(told)).to_be_visible()
    page.unroute("**/ui/session")
    page.clock.run_for(2_000)
    expect(page.get_by_text("live", exact=True)).to_be_visible()


def test_only_a_ticket_that_is_no_good_is_said_to_be_used(world: World, visit: Visit) -> None:
    page = visit.page
    page.route("**/ui/session", problem(429, "this key has signed in too often"))
    page.goto(f"/#ticket={world.do(lambda: ticket_of(world))}")
    expect(page.get_by_role("alert")).to_have_text("this key has signed in too often")
    page.unroute("**/ui/session")
    page.goto("/#ticket=another")
    expect(page.get_by_role("alert")).to_contain_text("was used already, or is too old")


def test_an_address_whose_ticket_is_none_leaves_no_blank_page(visit: Visit) -> None:
    visit.page.goto("/#ticket=%")
    expect(visit.page.get_by_role("alert")).to_contain_text("was used already, or is too old")
    visit.page.wait_for_selector("#key")


HIDE = """is => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => is });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_a_page_that_nobody_looks_at_lets_go_of_its_stream(world: World, browser: Browser) -> None:
    key = world.key("read")
    account = quotas_of(world).of(key.split("_")[1])
    with Visit.of(browser, world) as visit:
        page = visit.page
        page.clock.install()
        visit.sign_in(key)
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        assert account.event_streams == 1
        page.evaluate(HIDE, True)
        page.clock.fast_forward(31_000)
        expect(page.get_by_text("reconnecting", exact=True)).to_be_visible()
        Held(world).take("lock:while-away", "somebody")
        page.evaluate(HIDE, False)
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="while-away")).to_be_visible()
    assert visit.complaints == []
