"""The dashboard when its server goes away, and when its session ends: it never looks live when it is not."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.server.inside import ticket_of
from tests.server.ui.dashboard import Held, Visit, expect_live
from tests.server.world import World, lock
from tests.servers.waiting import wait_until

type Start = Callable[..., World]


def test_a_restart_is_shown_and_mended(browser: Browser, start: Start, tmp_path: Path) -> None:
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
