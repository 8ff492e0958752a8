"""The dashboard when its server goes away, and when its session ends: it never looks live when it is not."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.server.inside import keys_of, quotas_of, ticket_of
from tests.server.ui.dashboard import Held, Visit, expect_live
from tests.server.world import World, b64

pytestmark = pytest.mark.once


def test_a_restart_is_shown_and_mended(
    browser: Browser, start: Callable[..., World], tmp_path: Path
) -> None:
    before = start(tmp_path)
    Held(before).take("lock:before", "one")
    with Visit.of(browser, before) as visit:
        page = visit.page
        visit.sign_in()
        expect_live(page)
        expect(page.get_by_role("link", name="before")).to_be_visible()
        before.close()
        expect(page.get_by_role("alert")).to_contain_text("The service does not answer.")
        expect(page.get_by_text("reconnecting", exact=True)).to_be_visible()
        moving = "document.getAnimations().filter(each => each.playState === 'running').length"
        assert page.evaluate(moving) == 0
        after = start(tmp_path, listen=before.url.partition("//")[2])
        expect_live(page)
        expect(page.get_by_role("alert")).to_be_hidden()
        answer = after.client(key=after.key("acquire")).post(f"/v1/locks/{b64('after')}")
        assert answer.status_code == 200
        expect(page.get_by_role("link", name="after")).to_be_visible()


def test_a_revoked_key_signs_out(world: World, browser: Browser) -> None:
    key = world.key("read", name="to be revoked")
    with Visit.of(browser, world) as visit:
        page = visit.page
        visit.sign_in(key)
        expect_live(page)
        key_id = key.split("_")[1]
        world.do(lambda: keys_of(world).revoke(key_id))
        expect(page.get_by_label("API key")).to_be_focused()
        expect(page.get_by_role("alert")).to_contain_text("Your session has ended")


def answer(reply: tuple[int, str] | None, route: Route) -> None:
    if reply is None:
        route.abort()
    else:
        route.fulfill(status=reply[0], json={"detail": reply[1]})


def test_a_ticket_can_be_tried_again_until_it_is_refused(world: World, visit: Visit) -> None:
    page = visit.page
    page.clock.install()
    link = f"/#ticket={world.do(lambda: ticket_of(world))}"
    for reply, message in (
        (None, "The service does not answer; trying again."),
        ((429, "signed in too often"), "signed in too often"),
        ((503, "its records are away"), "Its records are away; trying again."),
    ):
        page.route("**/ui/session", partial(answer, reply))
        page.goto("about:blank")
        page.goto(link)
        expect(page.get_by_text(message)).to_be_visible()
        page.unroute("**/ui/session")
    page.clock.run_for(2_000)
    expect_live(page)
    page.context.clear_cookies()
    for wrong in ("another", "%"):
        page.goto("about:blank")
        page.goto(f"/#ticket={wrong}")
        expect(page.get_by_role("alert")).to_contain_text("was used already, or is too old")
        page.wait_for_selector("#key")


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
        expect_live(page)
        assert account.event_streams == 1
        page.evaluate(HIDE, True)
        page.clock.fast_forward(31_000)
        expect(page.get_by_text("reconnecting", exact=True)).to_be_visible()
        Held(world).take("lock:while-away", "somebody")
        page.evaluate(HIDE, False)
        expect_live(page)
        expect(page.get_by_role("link", name="while-away")).to_be_visible()
