// A list of any length: pages of it lie here, and rows that are in sight are in the document.

import { h, keyed, setAttribute } from "./dom.js";

const PAGE = 200; // items that are fetched at a time
const SPARE = 50; // more items that a page may get before it is split
const STRIDE = 1_000; // items that are counted at a time
const KEPT = 8; // pages that stay on each side of those in sight

/**
 * `fetchPage(after, limit)` returns `{ items, cursor }`: items after that cursor, in the order of `orderOf` each
 * item's `key`, and where to continue, null after the last. A page covers everything after `after` up to `until`.
 * So changes in one page do not move the others. `tally(items)` counts what `sum` adds up, also of pages
 * whose items are not here.
 */
export class Paged {
  constructor(fetchPage, orderOf, tally = () => ({})) {
    Object.assign(this, { fetchPage, orderOf, tally });
    this.pages = [blank(null, null)];
  }

  /** Items that are known. */
  get count() {
    return this.pages.reduce((sum, page) => sum + page.count, 0);
  }

  /** Whether all items are known. */
  get complete() {
    return this.pages.at(-1).looked;
  }

  /** Add up what `tally` counted under that name. */
  sum(name) {
    return this.pages.reduce((sum, page) => sum + (page.tally[name] ?? 0), 0);
  }

  /** Return the items from `from` to `to`. An item that is not here is undefined. */
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

  /** Fetch the pages between two items again, and drop items that are far away. */
  async refresh(from, to) {
    const wanted = this.pages.slice(this.indexAt(from), this.indexAt(to) + 1);
    for (const page of wanted) await this.load(page);
    const [first, last] = [this.indexAt(from), this.indexAt(to)];
    this.pages.forEach((page, index) => {
      if (index < first - KEPT || index > last + KEPT) page.items = null;
    });
  }

  /** Count some more items at the end, without keeping them. */
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
      found.push({ ...blank(after, until), count: some.length, tally: this.tally(some), looked: true });
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
    Object.assign(page, { items: own, count: own.length, tally: this.tally(own), looked: true });
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
  return { after, until, items: null, count: 0, tally: {}, looked: false };
}

const MARGIN = 8; // rows above and below those in sight

/**
 * A table of rows of one height, which the style sheet has as `--row`. `make` creates a row, `update` brings one
 * up to date; an item that is not here yet is undefined. `moved` is called when other rows come into sight,
 * `ended` with whether the user asked for the end.
 */
export class Virtual {
  constructor({ label, head, make, update, moved, ended }) {
    Object.assign(this, { make, update, moved, ended });
    this.count = 0;
    this.items = () => [];
    this.range = [0, 0];
    this.target = null; // the row that gets the focus as soon as it is there
    this.body = h("div.rows", { role: "rowgroup" });
    this.space = h("div.space", { role: "presentation" }, this.body);
    this.element = h("div.virtual", { role: "table", "aria-label": label, tabindex: "-1" }, head, this.space);
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element.addEventListener("pointerdown", () => (this.target = null));
    this.element.addEventListener("wheel", () => (this.target = null), { passive: true });
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.element);
  }

  /** Show so many rows; `items(from, to)` returns some of their items. */
  show(count, items) {
    [this.count, this.items] = [count, items];
    setAttribute(this.element, "aria-rowcount", count + 1);
    this.draw();
  }

  draw() {
    this.row = parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 40;
    const first = Math.floor(Math.max(0, this.element.scrollTop) / this.row);
    const visible = Math.ceil(this.element.clientHeight / this.row) + 1;
    const from = Math.max(0, first - MARGIN);
    const to = Math.min(this.count, first + visible + MARGIN);
    this.space.style.setProperty("height", `${this.count * this.row}px`);
    this.body.style.setProperty("transform", `translateY(${from * this.row}px)`);
    this.drawRows(this.items(from, to).map((item, at) => ({ item, at: from + at })));
    this.focusTarget();
    const [before, until] = this.range;
    this.range = [from, to];
    if (from !== before || to !== until) this.moved();
  }

  /** Rows are alike, so one whose item is gone shows another. The row with the focus stays. */
  drawRows(items) {
    const keyOf = ({ item, at }) => item?.key ?? `at ${at}`;
    const wanted = new Set(items.map(keyOf));
    const isFree = (row) => !wanted.has(row.itemKey) && !row.contains(document.activeElement);
    const free = [...this.body.children].filter(isFree);
    keyed(this.body, items, keyOf, () => free.pop() ?? this.make(), (row, { item, at }) => {
      setAttribute(row, "aria-rowindex", at + 2);
      row.at = at;
      this.update(row, item);
    });
  }

  /** Arrows, page keys, Home and End move from row to row. */
  onKey(event) {
    const row = event.target.closest?.("[role=row]");
    const at = this.target ?? row?.at ?? Math.floor(this.element.scrollTop / this.row);
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.row) - 2);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: Infinity };
    if (!(event.key in moves) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.ended(event.key === "End");
    this.focus(Math.min(Math.max(moves[event.key], 0), this.count - 1));
  }

  /** Scroll to a row, and focus it once its item is there. */
  focus(at) {
    this.target = at;
    const [top, height] = [at * this.row, this.element.clientHeight - this.space.offsetTop];
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + this.row > this.element.scrollTop + height) this.element.scrollTop = top + this.row - height;
    this.draw();
  }

  focusTarget() {
    if (this.target === null) return;
    const row = [...this.body.children].find((each) => each.at === this.target);
    const link = row?.querySelector("a[href]");
    if (!link || row.hasAttribute("aria-busy")) return;
    this.target = null;
    link.focus({ preventScroll: true });
  }

  /** Stop drawing. */
  stop() {
    this.watcher.disconnect();
  }
}
