"""Parts of the dashboard by themselves: modules of its page, run in the browser, and its style sheet."""

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, get_args

import pytest
from playwright.sync_api import Browser, Page, Route

from dibs.cli.output import shown
from dibs.core.names import KINDS
from dibs.model import MANY
from dibs.server.lock_events import EventType
from dibs.stores.http.names import encoded
from tests.server.ui.dashboard import Visit
from tests.server.world import World

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def page(world: World, browser: Browser) -> Iterator[Page]:
    with Visit.of(browser, world) as visit:
        visit.page.goto("/")
        yield visit.page


PAGED = """async ({ seed }) => {
    const { Paged } = await import('/ui/list.js');
    const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
    const some = (most) => Math.floor(random() * most);
    const spelt = (number) => String(number).padStart(6, '0');
    let all = Array.from({ length: 1500 }, (_, at) => spelt(at * 100));
    const fetchPage = async (after, limit) => {
        const rest = all.filter((key) => after === null || key > after);
        const items = rest.slice(0, limit - some(3)).map((key) => ({ key }));
        const ended = items.length === rest.length;
        return { items, cursor: ended ? null : items.at(-1)?.key ?? after };
    };
    const paged = new Paged(fetchPage, (key) => key);
    const wrong = [];
    for (let round = 0; round < 60; round++) {
        const begin = some(150_000);
        if (random() < 0.5) {
            const born = Array.from({ length: some(500) }, () => spelt(begin + some(3_000)));
            all = [...new Set([...all, ...born])].sort();
        } else all = all.filter((key) => Number(key) < begin || Number(key) > begin + some(40_000));
        const from = some(Math.max(paged.count, 1));
        if (random() < 0.7) await paged.refresh(from, from + 300);
        else await paged.goOn();
        const here = paged.pages.flatMap((page) => page.items ?? []).map((each) => each.key);
        const doubles = new Set(here).size !== here.length;
        if (doubles || here.some((key, at) => at && here[at - 1] > key)) wrong.push(round);
    }
    while (!paged.complete) await paged.goOn();
    for (let at = 0; at < paged.count + 200; at += 200) await paged.refresh(at, at + 400);
    for (let page; (page = paged.pages.find((each) => !each.items)); ) await paged.load(page);
    const found = paged.pages.flatMap((page) => page.items).map((each) => each.key);
    return { wrong, same: JSON.stringify(found) === JSON.stringify(all), count: paged.count === all.length };
}"""


@pytest.mark.parametrize("seed", [1, 2])
def test_a_list_that_changes_while_it_is_paged_has_everything_once(page: Page, seed: int) -> None:
    result = page.evaluate(PAGED, {"seed": seed})
    assert result == {"wrong": [], "same": True, "count": True}


LANES = """async ([statuses, events]) => {
    const { lanes } = await import('/ui/views/timeline.js');
    return lanes(statuses, events).map(({ id, blocks }) => [id, [...blocks.values()]]);
}"""

EVENT = {"kind": "lock", "name": "YQ", "lease": "l1", "owner": "me", "token": 1, "slots": [0]}


def event(what: str, at: float, **more: Any) -> dict[str, Any]:
    return {"what": what, "at": at, **EVENT, **more}


def test_lanes_join_what_begins_and_what_ends(page: Page) -> None:
    events = [
        event("released", 7, lease="l0", token=0, held_for=4),  # nobody saw it begin
        event("granted", 10),
        event("renewed", 11),
        event("expired", 15, held_for=5),
        event("granted", 16, kind="semaphore", slots=[2, 3]),
        event("queued", 17, lease="l2", token=0),
    ]
    held = {"lease": "l3", "since": 16.5, "token": 9, "owner": "now", "slots": [0]}
    status = {"kind": "lock", "encodedName": "YQ", "holders": [held]}
    found = dict(page.evaluate(LANES, [[status], events]))
    blocks = [(b["start"], b["end"], b["token"], b["how"]) for b in found["lock:YQ:"]]
    assert blocks == [(3, 7, 0, "released"), (10, 15, 1, "expired"), (16.5, None, 9, "")]
    assert {lane for lane in found if lane.startswith("semaphore")} == {
        "semaphore:YQ:000000002",
        "semaphore:YQ:000000003",
    }


LENGTHS = """async (looks) => {
    const { statusOf, isExpiring } = await import('/ui/status.js');
    return looks.map(([lease, asked, held_for, expires_in]) => {
        const holder = { lease, owner: 'me', token: 1, held_for, expires_in };
        const [hold] = statusOf({ key: 'bG9jazp4', capacity: 1, holders: [holder] }, asked).holders;
        return [hold.whole, isExpiring(hold, asked)];
    });
}"""


def test_a_hold_that_is_renewed_is_not_expiring_however_long_it_lasts(page: Page) -> None:
    """The length of a lease is learnt from what is left after a renewal."""
    looks = {
        ("unrenewed", 100, 20, 40): [60, False],
        ("unrenewed", 130, 50, 10): [60, True],
        ("renewed", 200, 9_000, 12): [12, False],  # first seen in the midst of its life
        ("renewed", 208, 9_008, 4): [12, False],
        ("renewed", 212, 9_012, 30): [30, False],  # renewed
        ("renewed", 222, 9_022, 20): [30, False],
        ("renewed", 232, 9_032, 30): [30, False],
        ("renewed", 257, 9_057, 5): [30, True],  # no longer renewed
    }
    assert page.evaluate(LENGTHS, list(looks)) == list(looks.values())


FOLLOWED = """async () => {
    const { follow } = await import('/ui/api.js');
    const heard = [];
    await new Promise((enough) => {
        const onEvent = (type, data) => heard.push([type, data]) === 2 && enough();
        const { stop } = follow('/cut', { onEvent, onState: () => {} });
        addEventListener('enough', stop);
    });
    dispatchEvent(new Event('enough'));
    return heard;
}"""

CUT = [
    "id: 7\nevent: granted\ndata: 1\n\nid: 8\nevent: released\ndata: 2\n",  # the blank line is missing
    "id: 8\nevent: released\ndata: 2\n\n",
]


def test_a_stream_goes_on_after_the_last_whole_event(page: Page) -> None:
    asked: list[str | None] = []

    def answer(route: Route) -> None:
        asked.append(route.request.headers.get("last-event-id"))
        route.fulfill(content_type="text/event-stream", body=CUT[min(len(asked), len(CUT)) - 1])

    page.route("**/cut", answer)
    assert page.evaluate(FOLLOWED) == [["granted", 1], ["released", 2]]
    assert asked == [None, "7"]


SESSIONS = """async () => {
    const { start, stop, latest, news } = await import('/ui/live.js');
    const next = (what) => new Promise((heard) => news.addEventListener(what, heard, { once: true }));
    const live = next('state');
    start();
    await live;
    stop();
    const result = next('event');
    start();
    await result;
    const found = latest();
    stop();
    return found;
}"""


def test_a_session_does_not_see_events_of_the_one_before(page: Page) -> None:
    bodies = [f'id: {each}\ndata: "of session {each}"\n\n' for each in (1, 2)]

    def answer(route: Route) -> None:
        route.fulfill(content_type="text/event-stream", body=bodies.pop(0))

    page.route("**/v1/events?*", answer)
    assert page.evaluate(SESSIONS) == ["of session 2"]


SHOWN = """async (names) => {
    const { shown, decoded, encoded, nameNode } = await import('/ui/names.js');
    return names.map((name) => [
        shown(decoded(name)), encoded(decoded(name)) === name, nameNode(decoded(name), 9).textContent,
    ]);
}"""


def test_names_are_shown_as_the_command_line_shows_them(page: Page) -> None:
    names = [
        b"plain",
        b"with space",
        "gr\u00f6\u00dfe".encode(),
        "\u202egnp.exe".encode(),
        b"\xff\xfe\xc3(",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x94",
        "a\u00a0b\u200b\ufeff".encode(),
        "\U000e0041\U0001f512".encode(),
        bytes(range(256)),
    ]
    result = page.evaluate(SHOWN, [encoded(name) for name in names])
    assert [each[0] for each in result] == [shown(b"lock:" + name) for name in names]
    assert all(each[1] for each in result)
    assert result[1][2] == "\u2026th space"


# ---- what the files say ---------------------------------------------------------------------------


ASSETS = files("dibs.server.ui") / "assets"

GROUNDS = ("ground", "surface", "raised")

PAIRS = [
    *[(ink, ground) for ink in ("ink", "soft") for ground in GROUNDS],
    *[(ink, ground) for ink in ("accent", "warn", "bad", "ok", "info") for ground in GROUNDS[:2]],
    *[(ink, f"{ink}-wash") for ink in ("warn", "bad", "ok", "info")],
    ("ink", "warn-wash"),
    ("on-accent", "accent"),
    ("surface", "bad"),
]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_texts_have_enough_contrast() -> None:
    """In light and in dark: 4.5, which is what small letters need."""
    text = (ASSETS / "base.css").read_text("utf-8")
    found = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", text)
    assert len(found) == text.count("light-dark(")
    for look in (1, 2):
        colours = {each[0]: luminance(each[look]) for each in found}
        for ink, ground in PAIRS:
            one, other = sorted((colours[ink], colours[ground]))
            assert (other + 0.05) / (one + 0.05) >= 4.5, (look, ink, ground)


def test_the_page_knows_what_the_service_does() -> None:
    def part(name: str, pattern: str) -> str:
        (found,) = re.findall(pattern, (ASSETS / name).read_text("utf-8"), re.DOTALL)
        return str(found)

    kinds = part("address.js", r"const KINDS = \[(.*?)\n\];")
    assert tuple(re.findall(r'\["(\w+)", "', kinds)) == KINDS
    events = set(get_args(EventType.__value__))
    chosen = re.findall(r'"(\w+)"', part("views/events.js", r"const WHATS = \[(.*?)\];"))
    assert set(chosen) == events - {"renewed"}
    endings = re.findall(r"(\w+):", part("views/timeline.js", r"const ENDINGS = \{(.*?)\};"))
    assert set(endings) == {"released", "expired", "freed"} <= events
    base, power = part("status.js", r"const MANY = (\d+ \*\* \d+);").split(" ** ")
    assert int(base) ** int(power) == MANY
