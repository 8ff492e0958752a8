// A list of any length, of which only what can be seen, and a little more, is in the document.

import { h, mark, recycled } from "./dom.js";

const SPARE = 8;

/**
 * Rows of one height, which the style sheet gives as `--row`. `make` gives a row, `update` brings one up to
 * date; an item that is not here yet is undefined. `moved` is called when others come into sight, `ended` when
 * somebody wants to see the end.
 */
export class Virtual {
  constructor({ label, head, make, update, moved, ended }) {
    Object.assign(this, { make, update, moved, ended });
    this.count = 0;
    this.items = () => [];
    this.range = [0, 0];
    this.aim = null;
    this.body = h("div.rows", { role: "rowgroup" });
    this.space = h("div.space", { role: "presentation" }, this.body);
    this.element = h("div.virtual", { role: "table", "aria-label": label, tabindex: "-1" }, head, this.space);
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element.addEventListener("pointerdown", () => (this.aim = null));
    this.element.addEventListener("wheel", () => (this.aim = null), { passive: true });
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.element);
  }

  /** Show so many; `items(from, to)` gives some of them. */
  show(count, items) {
    [this.count, this.items] = [count, items];
    mark(this.element, "aria-rowcount", count + 1);
    this.draw();
  }

  draw() {
    this.row = parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 40;
    const top = Math.max(0, this.element.scrollTop);
    const first = Math.floor(top / this.row);
    const seen = Math.ceil(this.element.clientHeight / this.row) + 1;
    const from = Math.max(0, first - SPARE);
    const to = Math.min(this.count, first + seen + SPARE);
    this.space.style.setProperty("height", `${this.count * this.row}px`);
    this.body.style.setProperty("transform", `translateY(${from * this.row}px)`);
    const items = this.items(from, to).map((item, at) => ({ item, at: from + at }));
    const keyOf = ({ item, at }) => item?.key ?? `at ${at}`;
    recycled(this.body, items, keyOf, () => this.make(), (row, { item, at }) => {
      mark(row, "aria-rowindex", at + 2);
      row.at = at;
      this.update(row, item);
    });
    this.land();
    const [before, until] = this.range;
    this.range = [from, to];
    if (from !== before || to !== until) this.moved(from, to);
  }

  scrollTo(at) {
    const [top, height] = [at * this.row, this.element.clientHeight - this.space.offsetTop];
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + this.row > this.element.scrollTop + height) this.element.scrollTop = top + this.row - height;
    this.draw();
  }

  /** Arrows, pages, home and end move from row to row. */
  onKey(event) {
    const row = event.target.closest?.("[role=row]");
    const at = this.aim ?? row?.at ?? Math.floor(this.element.scrollTop / this.row);
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.row) - 2);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: Infinity };
    if (!(event.key in moves) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.ended(event.key === "End");
    this.focus(Math.min(Math.max(moves[event.key], 0), this.count - 1));
  }

  /** Go to a row; it may have to come first. */
  focus(at) {
    this.aim = at;
    this.scrollTo(at);
  }

  land() {
    if (this.aim === null) return;
    const row = [...this.body.children].find((each) => each.at === this.aim);
    const link = row?.querySelector("a[href]");
    if (!link || row.hasAttribute("aria-busy")) return;
    this.aim = null;
    link.focus({ preventScroll: true });
  }

  /** Nothing is drawn any more. */
  stop() {
    this.watcher.disconnect();
  }
}
