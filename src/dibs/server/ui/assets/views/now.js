// Now: everything that is held or waited for.

import { choiceField, KINDS, prefixField, to, toLock } from "../address.js";
import { empty, errorLine, h, heading, setAttribute, setText } from "../dom.js";
import { leaseBar, person, setBar, share, stateBadge } from "../holders.js";
import { Paged, Virtual } from "../list.js";
import * as live from "../live.js";
import { nameNode } from "../names.js";
import * as session from "../session.js";
import { concerning, firstToEnd, isExpiring, orderOf, scanning } from "../status.js";
import { now, since, span, ticking } from "../time.js";

const COLUMNS = {
  what: "Name",
  kind: "Kind",
  holder: "Holder",
  held: "Held for",
  ends: "Lease",
  waiting: "Waiting",
  token: "Token",
};
const SMALL = 1_000; // a list of so many is read whole each time
const SHARE = 9; // pauses of the walk to the end are so many times as long as a step
const FIRST_PAUSE = 300;
const RETRY_PAUSE = 2_000;
const LOST_WITHIN = 3_600; // seconds

let kept = {};

export function nowView(_, params) {
  const view = new Now({ prefix: params.get("prefix") ?? "", kind: params.get("kind") ?? "" });
  return { element: view.element, stop: () => view.stop() };
}

class Now {
  constructor(filter) {
    this.filter = filter;
    this.trouble = errorLine();
    this.summary = new Summary(this);
    this.nothing = h("div", { hidden: true });
    this.list = new Virtual({
      label: "What is held now",
      head: head(),
      make,
      update,
      moved: () => this.loop?.again(),
      ended: (is) => (this.isHurried = is && !this.paged.complete),
    });
    const again = (change) => {
      Object.assign(this.filter, change);
      this.begin();
    };
    const fields = [
      prefixField(filter.prefix, (prefix) => again({ prefix })),
      choiceField("Kind", "kind", KINDS, filter.kind, (kind) => again({ kind })),
    ];
    const top = heading("Now", this.summary.element, ...fields);
    this.element = h("section.view.fills", {}, top, this.trouble.element, this.nothing, this.list.element);
    this.begin(recall(filter));
  }

  begin({ paged, top } = {}) {
    this.loop?.stop();
    clearTimeout(this.walk);
    const { kind, prefix } = this.filter;
    this.concerns = concerning(kind, prefix);
    this.paged = paged ?? new Paged(scanning(kind, prefix), orderOf, tally);
    this.draw();
    requestAnimationFrame(() => (this.list.element.scrollTop = top ?? 0));
    const failed = this.trouble.show;
    this.loop = live.looking(() => this.look(), { every: 2, concerns: this.concerns, failed });
    this.walkOn(this.paged);
  }

  async look() {
    const { paged } = this;
    const [from, to] = paged.count <= SMALL ? [0, SMALL] : this.list.range;
    await paged.refresh(from, to);
    if (paged !== this.paged) return;
    this.trouble.clear();
    this.draw();
  }

  /** Count what follows the known end, for a tenth of the time at most. */
  walkOn(paged, pause = FIRST_PAUSE) {
    this.walk = setTimeout(async () => {
      const begun = performance.now();
      const failed = await paged.goOn().catch((error) => error);
      if (paged !== this.paged) return;
      this.draw();
      const isWaitedFor = this.isHurried || this.list.range[1] >= paged.count;
      const next = isWaitedFor ? 0 : Math.max(FIRST_PAUSE, SHARE * (performance.now() - begun));
      if (!paged.complete) return this.walkOn(paged, failed ? RETRY_PAUSE : next);
      if (this.isHurried) this.list.focus(paged.count - 1);
      this.isHurried = false;
    }, pause);
  }

  draw() {
    const { count, complete } = this.paged;
    const isEmpty = count === 0 && complete;
    this.nothing.hidden = !isEmpty;
    this.list.element.hidden = isEmpty;
    if (isEmpty) this.nothing.replaceChildren(this.emptyText());
    this.summary.draw(this);
    this.list.show(count, (from, to) => this.paged.slice(from, to));
  }

  emptyText() {
    const { prefix, kind } = this.filter;
    if (prefix || kind) return empty("No match", "Nothing held has this prefix and kind. Free names are not listed.");
    const url = location.origin + location.pathname.replace(/\/$/, "");
    const command = `export DIBS_URL=${url} DIBS_API_KEY=…\ndibs run jobs/first -- sleep 60`;
    return empty("Nothing is held", "Locks appear here as soon as a program holds them. To hold a first one:", command);
  }

  stop() {
    kept = { session: session.current(), ...this.filter, paged: this.paged, top: this.list.element.scrollTop };
    this.loop.stop();
    this.list.stop();
    clearTimeout(this.walk);
    this.paged = null;
  }
}

/** The user who comes back finds the list as it was. */
function recall({ prefix, kind }) {
  const isSame = kept.session === session.current() && kept.prefix === prefix && kept.kind === kind;
  return isSame ? kept : {};
}

/** One line: how much is held, waits, is about to expire, and was lost. */
class Summary {
  constructor(view) {
    this.held = figure("held");
    this.waiting = figure("waiting", "warn");
    this.expiring = figure("expiring", "warn", "Less than a fifth of the lease is left");
    this.lost = figure("lost", "bad", "Leases that expired: the holder died or was too slow");
    this.element = h("ul.summary", { "aria-label": "Summary" }, this.held, this.waiting, this.expiring, this.lost);
    ticking(this.element, () => view.paged && this.draw(view));
  }

  /** Counts of a long list are those of the last time that each of its pages was read. */
  draw({ paged, filter: { prefix }, concerns }) {
    const isLong = paged.count > SMALL;
    const [before, after] = paged.complete ? [isLong ? "about " : "", ""] : ["", "+"];
    const total = (name) => `${before}${number(paged.sum(name))}${after} ${name}`;
    setFigure(this.held, paged.sum("held"), total("held"));
    setFigure(this.waiting, paged.sum("waiting"), total("waiting"), to(["queues"], { prefix }));
    const items = isLong ? [] : paged.slice(0, paged.count);
    const expiring = items.flatMap((item) => item?.holders ?? []).filter((hold) => isExpiring(hold)).length;
    this.expiring.hidden = isLong;
    setFigure(this.expiring, expiring, `${number(expiring)} expiring`);
    const from = now() - LOST_WITHIN;
    const events = live.latest();
    const lost = events.filter((event) => event.what === "expired" && event.at > from && concerns(event)).length;
    const isHour = !events.length || events[0].at < from;
    const period = isHour ? "hour" : span(now() - events[0].at);
    setFigure(this.lost, lost, `${number(lost)} lost in the last ${period}`, to(["events"], { prefix, what: "expired" }));
  }
}

function figure(name, tone, title) {
  return h("li.figure", { "data-figure": name, "data-tone": tone, title }, h("a"));
}

function setFigure(element, value, text, href) {
  setText(element.firstChild, text);
  setAttribute(element.firstChild, "href", href);
  setAttribute(element, "data-zero", value === 0);
}

function number(value) {
  return value.toLocaleString("en");
}

function tally(items) {
  const waiting = items.reduce((sum, item) => sum + item.waiting, 0);
  return { held: items.filter((item) => item.holding).length, waiting };
}

function head() {
  const cells = Object.entries(COLUMNS).map(([name, title]) => h(`span.${name}`, { role: "columnheader" }, title));
  return h("div.heads", { role: "rowgroup" }, h("div.row.head", { role: "row", "aria-rowindex": "1" }, ...cells));
}

function make() {
  const cell = (name, ...children) => h(`span.${name}`, { role: "cell" }, ...children);
  const row = h("div.row", { role: "row" });
  row.link = h("a");
  row.kind = cell("kind");
  row.holder = cell("holder");
  row.held = since(0, {}, { before: "" });
  row.bar = leaseBar();
  row.waiting = cell("waiting");
  row.token = cell("token");
  row.append(cell("what", row.link), row.kind, row.holder, cell("held", row.held), cell("ends", row.bar), row.waiting, row.token);
  return row;
}

function update(row, item) {
  if (row.item === item) return;
  const before = row.item;
  row.item = item;
  setAttribute(row, "aria-busy", item === undefined ? "true" : null);
  if (!item) return;
  if (before?.key !== item.key) {
    row.link.replaceChildren(nameNode(item.name, 96));
    row.link.href = toLock(item.kind, item.encodedName);
    setText(row.kind, item.kind);
  }
  const [hold] = item.holders;
  const who = JSON.stringify(item.holders.map((each) => [each.owner, each.note, each.state, each.slots]));
  if (row.who !== who) row.holder.replaceChildren(...holderParts(item));
  row.who = who;
  row.held.hidden = !hold;
  row.held.at = Math.min(...item.holders.map((each) => each.since));
  if (hold) row.held.tick(row.held);
  setBar(row.bar, firstToEnd(item));
  setText(row.waiting, item.waiting ? number(item.waiting) : "");
  setText(row.token, hold?.token ? String(hold.token) : "");
}

function holderParts(item) {
  const [hold] = item.holders;
  if (!hold) return [h("span.soft", {}, "free")];
  const isOne = item.holding === 1;
  const used = item.capacity > 1 ? `${item.used} of ${item.capacity}` : "";
  const side = item.kind === "rwlock" && !isOne ? "reading" : isOne ? share(item, hold) : "";
  return [
    person(hold, 60),
    isOne ? null : h("span.soft", {}, `and ${item.holding - 1} more`),
    used || side ? h("span.soft", {}, used || side) : null,
    stateBadge(hold),
  ].filter(Boolean);
}
