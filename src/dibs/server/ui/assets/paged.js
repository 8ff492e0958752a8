// A long list that lies with the server, of which only some pages are here at a time.

/** So many are fetched at a time. */
export const PAGE = 200;
const SPARE = 50;
const STRIDE = 1_000;
const KEPT = 8;

/**
 * `fetchPage(after, limit)` gives `{ items, cursor }`: what comes after that cursor, in the order of `orderOf`
 * each item's `key`, and where to go on, null after the last. A page covers what comes after `after` as far as
 * `until`; so a list that grows or shrinks in one place stays as it is in all others.
 */
export class Paged {
  constructor(fetchPage, orderOf) {
    this.fetchPage = fetchPage;
    this.orderOf = orderOf;
    this.pages = [blank(null, null)];
  }

  /** How many are known. */
  get count() {
    return this.pages.reduce((sum, page) => sum + page.count, 0);
  }

  /** Whether those that are known are all. */
  get complete() {
    return this.pages.at(-1).looked;
  }

  /** The items from `from` to `to`; undefined for those that are not here. */
  slice(from, to) {
    const found = [];
    let start = 0;
    for (const page of this.pages) {
      const end = start + page.count;
      for (let at = Math.max(from, start); at < Math.min(to, end); at++) found.push(page.items?.[at - start]);
      start = end;
      if (start >= to) break;
    }
    return found;
  }

  /** Get anew what lies between `from` and `to`, and let go of what is far away. */
  async refresh(from, to) {
    const wanted = this.pages.slice(this.indexAt(from), this.indexAt(to) + 1);
    for (const page of wanted) await this.load(page);
    const [first, last] = [this.indexAt(from), this.indexAt(to)];
    this.pages.forEach((page, index) => {
      if (index < first - KEPT || index > last + KEPT) page.items = null;
    });
  }

  /** See how many more there are at the end than is known, without keeping them. */
  async goOn() {
    const page = this.pages.at(-1);
    if (page.looked) return;
    const { items, cursor } = await this.fetchPage(page.after, STRIDE);
    if (this.pages.at(-1) !== page || page.looked) return;
    const found = [];
    let after = page.after;
    for (let at = 0; at < items.length; at += PAGE) {
      const some = items.slice(at, at + PAGE);
      const until = some.at(-1).key;
      found.push({ ...blank(after, until), count: some.length, looked: true });
      after = until;
    }
    if (cursor === null && found.length) found.at(-1).until = null;
    else found.push({ ...blank(cursor ?? after, null), looked: cursor === null });
    this.pages.splice(this.pages.length - 1, 1, ...found);
  }

  indexAt(position) {
    let start = 0;
    const index = this.pages.findIndex((page) => (start += page.count) > position);
    return index < 0 ? this.pages.length - 1 : index;
  }

  async load(page) {
    const most = page.until === null ? PAGE : Math.min(page.count, PAGE) + SPARE;
    const { items, cursor } = await this.fetchPage(page.after, most);
    const index = this.pages.indexOf(page);
    if (index < 0) return;
    const own = page.until === null ? items : items.filter((each) => !this.comesAfter(each.key, page.until));
    Object.assign(page, { items: own, count: own.length, looked: true });
    if (cursor !== null && (page.until === null || this.comesAfter(page.until, cursor))) {
      this.pages.splice(index + 1, 0, blank(cursor, page.until));
      page.until = cursor;
    } else if (!own.length && index > 0) {
      this.pages.splice(index, 1);
      this.pages[index - 1].until = page.until;
    }
  }

  comesAfter(key, other) {
    return this.orderOf(key) > this.orderOf(other);
  }
}

function blank(after, until) {
  return { after, until, items: null, count: 0, looked: false };
}
