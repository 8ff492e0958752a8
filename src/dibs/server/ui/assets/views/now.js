// Now: everything that is held or waited for.

import { leaseBar, setBar } from "../bars.js";
import { h, mark, say } from "../dom.js";
import { empty, firstLock, trouble } from "../empty.js";
import { choiceField, KINDS, prefixField } from "../filter.js";
import { looking } from "../loop.js";
import { nameNode } from "../names.js";
import { Paged } from "../paged.js";
import { person, share, stateBadge } from "../people.js";
import { toLock } from "../route.js";
import { concerning, orderOf, scanning } from "../scan.js";
import * as session from "../session.js";
import { first } from "../statuses.js";
import { when } from "../times.js";
import { Virtual } from "../virtual.js";

const COLUMNS = ["Name", "Holder", "Token", "Lease", "Held for", "Renewals", "Waiting"];
const CLASSES = ["what", "holder", "token", "ends", "held", "renewals", "waiting"];
const SMALL = 1_000;
const SHARE = 9;
const FIRST = 300;
const AGAIN = 2_000;

let kept = {};

export function nowView(_, params) {
  const wanted = { prefix: params.get("prefix") ?? "", kind: params.get("kind") ?? "" };
  const view = new Now(wanted);
  return { element: view.element, stop: () => view.stop() };
}

class Now {
  constructor(wanted) {
    this.wanted = wanted;
    this.told = trouble();
    this.total = h("span.total", { role: "status" });
    this.nothing = h("div", { hidden: true });
    this.list = new Virtual({
      label: "What is held now",
      head: head(),
      make,
      update,
      moved: () => this.loop?.poke(),
      ended: (is) => this.hurry(is && !this.paged.complete),
    });
    const again = (change) => {
      Object.assign(this.wanted, change);
      this.begin();
    };
    this.element = h(
      "section.view.fills",
      {},
      h(
        "header.title",
        {},
        h("h1", {}, "Now"),
        this.total,
        h(
          "div.fields",
          {},
          prefixField(wanted.prefix, (prefix) => again({ prefix })),
          choiceField("Kind", "kind", KINDS, wanted.kind, (kind) => again({ kind })),
        ),
      ),
      this.told.element,
      this.nothing,
      this.list.element,
    );
    this.begin(recall(wanted));
  }

  begin({ paged, top } = {}) {
    this.loop?.stop();
    clearTimeout(this.walk);
    const { kind, prefix } = this.wanted;
    const concerns = concerning(kind, prefix);
    this.paged = paged ?? new Paged(scanning(kind, prefix), orderOf);
    this.draw();
    requestAnimationFrame(() => (this.list.element.scrollTop = top ?? 0));
    this.loop = looking(() => this.look(), { every: 2, concerns, failed: (error) => this.told.tell(error) });
    this.walkOn(this.paged);
  }

  async look() {
    const paged = this.paged;
    const { kind, prefix } = this.wanted;
    const [from, to] = paged.count <= SMALL ? [0, SMALL] : this.list.range;
    await paged.refresh(from, to);
    if (paged !== this.paged) return;
    this.told.clear();
    this.draw();
  }

  /** See whether there is more at the end than is known, for a tenth of the time at most. */
  walkOn(paged, pause = FIRST) {
    this.walk = setTimeout(async () => {
      const begun = performance.now();
      const failed = await paged.goOn().catch((error) => error);
      if (paged !== this.paged) return;
      this.draw();
      const wanted = this.hurried || this.list.range[1] >= paged.count;
      const next = failed ? AGAIN : wanted ? 0 : Math.max(FIRST, SHARE * (performance.now() - begun));
      if (!paged.complete) return this.walkOn(paged, next);
      if (this.hurried) this.list.focus(paged.count - 1);
      this.hurried = false;
    }, pause);
  }

  /** Somebody waits for the end of the list. */
  hurry(is) {
    this.hurried = is;
  }

  draw() {
    const number = this.paged.count;
    const none = number === 0 && this.paged.complete;
    this.nothing.hidden = !none;
    this.list.element.hidden = none;
    if (none) this.nothing.replaceChildren(this.nothingThere());
    const about = number > SMALL && this.paged.complete ? "about " : "";
    const words = `${about}${number.toLocaleString("en")}${this.paged.complete ? "" : " and more"} in use`;
    say(this.total, number || this.paged.complete ? words : "");
    this.list.show(number, (from, to) => this.paged.slice(from, to));
  }

  nothingThere() {
    const { prefix, kind } = this.wanted;
    if (prefix || kind) return empty("No match", "Nothing held has this prefix and kind. Free names are not listed.");
    return empty("Nothing is held", "Locks appear here as soon as a program holds them. To hold a first one:", firstLock());
  }

  stop() {
    kept = { who: session.current(), ...this.wanted, paged: this.paged, top: this.list.element.scrollTop };
    this.loop.stop();
    this.list.stop();
    clearTimeout(this.walk);
    this.paged = null;
  }
}

/** Whoever comes back finds the list where it was left. */
function recall({ prefix, kind }) {
  const mine = kept.who === session.current() && kept.prefix === prefix && kept.kind === kind;
  return mine ? kept : {};
}

function head() {
  const cells = COLUMNS.map((title, at) => h(`span.${CLASSES[at]}`, { role: "columnheader" }, title));
  return h("div.heads", { role: "rowgroup" }, h("div.row.head", { role: "row", "aria-rowindex": "1" }, ...cells));
}

function make() {
  const cell = (name, ...children) => h(`span.${name}`, { role: "cell" }, ...children);
  const row = h("div.row", { role: "row" });
  row.link = h("a");
  row.kind = h("span.kind");
  row.holder = cell("holder");
  row.token = cell("token");
  row.bar = leaseBar();
  row.held = when(0, undefined, {}, "");
  row.renewals = cell("renewals");
  row.waiting = cell("waiting");
  row.append(cell("what", row.kind, row.link), row.holder, row.token, cell("ends", row.bar), cell("held", row.held), row.renewals, row.waiting);
  return row;
}

function update(row, item) {
  if (row.item === item) return;
  const before = row.item;
  row.item = item;
  mark(row, "aria-busy", item === undefined ? "true" : null);
  if (!item) return;
  if (before?.key !== item.key) {
    row.link.replaceChildren(nameNode(item.name, 44));
    row.link.href = toLock(item.kind, item.spelt);
    say(row.kind, item.kind);
  }
  const hold = item.holders[0];
  const who = JSON.stringify(item.holders.map((each) => [each.owner, each.note, each.state, each.slots]));
  if (row.who !== who) row.holder.replaceChildren(...holderParts(item));
  row.who = who;
  say(row.token, hold?.token ? String(hold.token) : "");
  setBar(row.bar, first(item));
  row.held.hidden = !hold;
  row.held.at = Math.min(...item.holders.map((each) => each.since));
  if (hold) row.held.tick(row.held);
  say(row.renewals, hold?.renewals ? hold.renewals.toLocaleString("en") : "");
  say(row.waiting, item.waiting ? item.waiting.toLocaleString("en") : "");
}

function holderParts(item) {
  const [hold] = item.holders;
  if (!hold) return [h("span.free", {}, "free")];
  const many = item.holding;
  const of = item.capacity > 1 ? `${item.used} of ${item.capacity}` : "";
  const own = many === 1 ? share(item, hold) : "";
  const side = item.kind === "rwlock" && many > 1 ? "reading" : own;
  return [
    person(hold, 30),
    many > 1 ? h("span.more", {}, `and ${many - 1} more`) : null,
    of || side ? h("span.of", {}, of || side) : null,
    stateBadge(hold),
  ].filter(Boolean);
}
