"""Hostile names, notes and reasons in a real browser: they are shown as text, and nothing of them runs."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.ui.dashboard import Held, Visit
from tests.server.world import World, b64

pytestmark = pytest.mark.once

RUN = "window.ran=1"

EVIL = [
    f"<img src=x onerror={RUN}>".encode(),
    f'"><script>{RUN}</script>'.encode(),
    f"</title></style></textarea><svg onload={RUN}>".encode(),
    f"' onmouseover='{RUN}' x='".encode(),
    f"{{{{constructor.constructor('{RUN}')()}}}}${{{RUN}}}".encode(),
    b"../../v1/keys?#&=%2e%00/",
    "a\u202egnp.exe\u202c\u2066b\u2069\u200f \ufeff\u200b\u00ad\u2028\u2029".encode(),
    "\U0001f468\u200d\U0001f469 e\u0301 \u0590\u05d0\u05d1 \U000e0041".encode(),
    b"\xff\xfe\x80invalid\xc3(\xed\xa0\x80" + bytes(range(33)),
    b"__proto__",
    (f"<b onclick={RUN}>" * 64).encode()[:512],
]
"""Names."""

TEXT = f"<img src=x onerror={RUN}>\u202e\u2066'\"><script>{RUN}</script>"
"""What each free text contains."""

HIDDEN = "\u202e\u202c\u2066\u2069\u200f\u200b\ufeff\u2028\u2029\u00ad\0"
"""Characters that turn others around, or are invisible."""


@pytest.fixture(scope="module")
def key(world: World) -> str:
    """An administrator's key with such a name, once locks with all those names are held and waited for."""
    admin = world.client()
    about = {"note": TEXT, "client-id": TEXT, "ttl": "600"}
    for name in EVIL:
        for kind in ({}, {"capacity": "3"}, {"mode": "read"}, {"kind": "leader"}):
            answer = admin.post(f"/v1/locks/{b64(name)}", params=about | kind)
            assert answer.status_code == 200, answer.text
    held = Held(world)
    for name in EVIL:
        held.wait(b"lock:" + name, TEXT, note=TEXT)
    gone = b64(f"<img src=x onerror={RUN}>gone")
    held = admin.post(f"/v1/locks/{gone}", params=about).json()
    force = {"id": held["id"], "force": "true", "reason": TEXT.replace("\u202e", "")}
    assert admin.delete(f"/v1/locks/{gone}", params=force).status_code == 200
    return world.key("admin", name=f"<img src=x onerror={RUN}>'\"")


@pytest.fixture(scope="module")
def inside(world: World, browser: Browser, key: str) -> Iterator[Visit]:
    """One visit for all tests: the page goes from view to view."""
    with Visit.of(browser, world) as visit:
        visit.sign_in(key)
        yield visit


def check_nothing_ran(visit: Visit) -> None:
    page = visit.page
    assert visit.complaints == []
    assert page.evaluate("window.ran") is None
    assert page.locator("script").count() == 1
    found = page.evaluate(
        """() => [...document.querySelectorAll('*')].flatMap((element) =>
            [...element.attributes]
                .filter(({ name, value }) => name.startsWith('on') || /^\\s*javascript:/i.test(value))
                .map(({ name }) => `${element.tagName} ${name}`))"""
    )
    assert found == []
    foreign = "img[src='x'], iframe, object, embed, base, b[onclick], svg[onload]"
    assert page.locator(foreign).count() == 0
    text = page.evaluate("document.body.innerText")
    assert [hex(ord(each)) for each in HIDDEN if each in text] == []


def go(page: Page, where: str) -> None:
    page.goto(f"/#/{where}")
    expect(page.locator("#main :is(h1, h2)").first).to_be_visible()


def test_each_view_shows_names_and_notes_as_text(inside: Visit) -> None:
    for place in ("now", "queues", "pools", "leaders", "timeline", "events", "audit"):
        go(inside.page, place)
        expect(inside.page.locator(f"nav [aria-current=page][href*={place}]")).to_be_visible()
        if place != "events":
            expect(inside.page.locator("#main")).to_contain_text("<img src=x onerror=")
        check_nothing_ran(inside)


def test_the_page_of_each_lock_does_so_too(inside: Visit) -> None:
    for name in EVIL:
        go(inside.page, f"lock/lock/{b64(name).removeprefix('base64:')}")
        expect(inside.page.locator("#main")).to_contain_text("<img src=x onerror=")  # the holder
        check_nothing_ran(inside)


def test_an_address_in_a_link_is_text_too(inside: Visit) -> None:
    for address in (
        f"now?prefix=<img src=x onerror={RUN}>&kind=<b>",
        f"events?prefix=%3Cimg%20src%3Dx%20onerror%3D{RUN}%3E",
        f"<img src=x onerror={RUN}>",
        "lock/lock/%00%FF",
        f"lock/<script>{RUN}</script>/eA",
        "now?prefix=%E2%80%AE",
        "__proto__",
    ):
        go(inside.page, "now")
        go(inside.page, address)
        check_nothing_ran(inside)


def test_scripts_that_get_in_are_blocked_and_noticed(visit: Visit) -> None:
    visit.sign_in()
    expect(visit.page.locator("#main h1").first).to_be_visible()
    for markup in (
        f'<img src=x onerror="{RUN}">',
        '<p style="position:fixed">',
        '<iframe src="/v1/limits"></iframe>',
        '<img src="http://127.0.0.1:1/x">',
        '<form action="http://127.0.0.1:1/"><button id=send></form>',
    ):
        visit.complaints.clear()
        visit.page.evaluate(
            "(markup) => { const at = document.createElement('div'); document.body.append(at);"
            " at.innerHTML = markup; document.getElementById('send')?.click(); }",
            markup,
        )
        expect_complaint(visit)
    for script in ("eval('1')", "setTimeout('window.ran=1')"):
        visit.complaints.clear()
        visit.page.evaluate(
            "(text) => { const at = document.createElement('script'); at.textContent = text;"
            " document.body.append(at); }",
            script,
        )
        expect_complaint(visit)
    assert visit.page.evaluate("window.ran") is None
    visit.complaints.clear()


def expect_complaint(visit: Visit) -> None:
    while not any("Content Security Policy" in each for each in visit.complaints):
        visit.page.wait_for_event("console")
