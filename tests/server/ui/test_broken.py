"""The dashboard when its server goes away, and when its session ends: it never looks live when it is not."""

from collections.abc import Callable
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
    expect_live(page)


def test_only_a_ticket_that_is_no_good_is_said_to_be_used(world: World, visit: Visit) -> None:
    page = visit.page
    page.route("**/ui/session", problem(429, "this key has signed in too often"))
    page.goto(f"/#ticket={world.do(lambda: ticket_of(world))}")
    expect(page.get_by_role("alert")).to_have_text("this key has signed in too often")
    page.unroute("**/ui/session")
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
