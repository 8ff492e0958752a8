"""Parts of the dashboard by themselves: modules of its page, run in the browser."""

import pytest

from tests.server.ui.dashboard import Visit

pytestmark = pytest.mark.once

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


def test_a_list_that_changes_while_it_is_paged_has_everything_once(visit: Visit) -> None:
    visit.page.goto("/")
    for seed in (1, 2):
        result = visit.page.evaluate(PAGED, {"seed": seed})
        assert result == {"wrong": [], "same": True, "count": True}, seed


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
