"""What is hostile in a real browser: names, notes and reasons are text, and a key is kept nowhere."""

from playwright.sync_api import Page, expect

from tests.server.ui.dashboard import Held, Visit
from tests.server.world import World, b64, lock

RUN = "window.ran=1"

EVIL = [
    f"<img src=x onerror={RUN}>".encode(),
    f'"><script>{RUN}</script>'.encode(),
    f"</title></style></textarea><svg onload={RUN}>".encode(),
    f"' onmouseover='{RUN}' x='".encode(),
    b"../../v1/keys?#&=%2e%00/__proto__",
    "a\u202egnp.exe\u202c\u2066b\u2069\u200f \ufeff\u200b\u00ad\u2028\u2029".encode(),
    b"\xff\xfe\x80invalid\xc3(\xed\xa0\x80" + bytes(range(33)),
    (f"<b onclick={RUN}>" * 64).encode()[:512],
]
"""Names."""

TEXT = f"<img src=x onerror={RUN}>\u202e\u2066'\"><script>{RUN}</script>"
"""What each free text contains."""

ADDRESSES = [
    f"now?prefix=<img src=x onerror={RUN}>&kind=<b>",
    f"<img src=x onerror={RUN}>",
    "lock/lock/%00%FF",
    f"lock/<script>{RUN}</script>/eA",
    "__proto__",
]
"""Of views, in links from others."""

HIDDEN = "\u202e\u202c\u2066\u2069\u200f\u200b\ufeff\u2028\u2029\u00ad\0"
"""Characters that turn others around, or are invisible."""


def fill(world: World) -> str:
    """Locks with all those names are held and waited for; return an administrator's key with such a name."""
    admin, held = world.client(), Held(world)
    about = {"note": TEXT, "client-id": TEXT, "ttl": "600"}
    for name in EVIL:
        for kind in ({}, {"capacity": "3"}, {"mode": "read"}, {"kind": "leader"}):
            answer = admin.post(lock(name), params=about | kind)
            assert answer.status_code == 200, answer.text
        held.wait(b"lock:" + name, TEXT, note=TEXT)
    gone = lock(f"<img src=x onerror={RUN}>gone")
    lease = admin.post(gone, params=about).json()
    force = {"id": lease["id"], "force": "true", "reason": TEXT.replace("\u202e", "")}
    assert admin.delete(gone, params=force).status_code == 200
    return world.key("admin", name=f"<img src=x onerror={RUN}>'\"")


FOUND = """() => [...document.querySelectorAll('*')].flatMap((element) =>
    [...element.attributes]
        .filter(({ name, value }) => name.startsWith('on') || /^\\s*javascript:/i.test(value))
        .map(({ name }) => `${element.tagName} ${name}`))"""


def check_nothing_ran(visit: Visit) -> None:
    page = visit.page
    assert visit.complaints == []
    assert page.evaluate("window.ran") is None
    assert page.locator("script").count() == 1
    assert page.evaluate(FOUND) == []
    foreign = "img[src='x'], iframe, object, embed, base, b[onclick], svg[onload]"
    assert page.locator(foreign).count() == 0
    text = page.evaluate("document.body.innerText")
    assert [hex(ord(each)) for each in HIDDEN if each in text] == []


def go(page: Page, where: str) -> None:
    page.goto(f"/#/{where}")
    expect(page.locator("#main :is(h1, h2)").first).to_be_visible()


def test_each_view_shows_names_and_notes_as_text(world: World, visit: Visit) -> None:
    visit.sign_in(fill(world))
    main = visit.page.locator("#main")
    for place in ("now", "queues", "pools", "leaders", "timeline", "events", "audit"):
        go(visit.page, place)
        expect(visit.page.locator(f"nav [aria-current=page][href*={place}]")).to_be_visible()
        if place != "events":
            expect(main).to_contain_text("<img src=x onerror=")
        check_nothing_ran(visit)
    for name in EVIL:
        go(visit.page, f"lock/lock/{b64(name).removeprefix('base64:')}")
        expect(main).to_contain_text("<img src=x onerror=")  # the holder
        check_nothing_ran(visit)
    for address in ADDRESSES:
        go(visit.page, "now")
        go(visit.page, address)
        check_nothing_ran(visit)


KEPT = """async () => JSON.stringify([
    document.documentElement.outerHTML, { ...localStorage }, { ...sessionStorage },
    [...document.querySelectorAll('input')].map((input) => input.value),
    document.cookie, location.href, history.state, window.name,
    (await indexedDB.databases()).map(({ name }) => name), await caches.keys(),
    performance.getEntries().map(({ name }) => name),
])"""


def test_a_key_is_kept_nowhere(world: World, visit: Visit) -> None:
    key = world.key("admin", name="me")
    page = visit.page
    page.goto("/")
    page.fill("#key", key)
    page.click("button[type=submit]")
    page.wait_for_selector("nav a")
    assert key.split("_", 2)[2] not in page.evaluate(KEPT) + str(page.context.storage_state())
    assert page.evaluate("document.cookie") == "", "no script reads the session"
    [cookie] = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
