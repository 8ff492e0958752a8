// Queues: names with waiters, the longest queue first, and their holders.

import * as api from "../api.js";
import { leaseBar, setBar } from "../bars.js";
import { now } from "../clock.js";
import { h, keyed, say } from "../dom.js";
import { empty, trouble } from "../empty.js";
import { prefixField } from "../filter.js";
import { looking } from "../loop.js";
import { encoded } from "../names.js";
import { count, inLine, person, share, stateBadge } from "../people.js";
import { concerning } from "../scan.js";
import { status } from "../statuses.js";
import { when } from "../times.js";
import { titleOf } from "../title.js";

const FEW = 6;

export function queuesView(_, params) {
  let prefix = params.get("prefix") ?? "";
  const told = trouble();
  const total = h("span.total", { role: "status" });
  const cards = h("div.cards");
  const nothing = h("div", { hidden: true }, empty("No queues", "Nothing waits for a lease. A queue appears here as soon as a program waits, for instance with:", "dibs run jobs/first --wait 60 -- true"));
  const field = prefixField(prefix, (value) => {
    prefix = value;
    loop.poke();
  });
  const element = h("section.view", {}, h("header.title", {}, h("h1", {}, "Queues"), total, h("div.fields", {}, field)), told.element, nothing, cards);

  const look = async () => {
    const asked = now();
    const found = await api.get("v1/queues", prefix ? { names: encoded(prefix) } : {});
    const items = found.items.map((each) => status(each, asked));
    told.clear();
    nothing.hidden = items.length > 0;
    const more = found.count > items.length ? `, the ${items.length} longest are shown` : "";
    say(total, items.length ? `${count(found.count, "queue")}${more}` : "");
    keyed(cards, items, (item) => item.key, make, update);
  };
  const concerns = (event) => concerning("", prefix)(event);
  const loop = looking(look, { every: 2, concerns, failed: told.tell });
  return { element, stop: loop.stop };
}

function make(item) {
  const card = h("article.card.queue");
  card.size = h("span.size");
  card.holders = h("ul.people");
  card.waiters = h("ol.people.line");
  card.rest = h("p.rest");
  const kind = h("span.kind", {}, item.kind);
  card.append(titleOf(item, card.size, kind), card.holders, card.waiters, card.rest);
  return card;
}

function update(card, item) {
  say(card.size, inLine(item.waiting));
  keyed(card.holders, item.holders.slice(0, FEW), (each) => each.lease, (hold) => makeHolder(item, hold), updateHolder);
  keyed(card.waiters, item.waiters.slice(0, FEW), (each) => each.lease, makeWaiter);
  const [holders, waiters] = [item.holding - FEW, item.waiting - Math.min(item.waiters.length, FEW)];
  const parts = [];
  if (holders > 0) parts.push(`${count(holders, "other holder")}`);
  if (waiters > 0) parts.push(`${waiters.toLocaleString("en")} more waiting`);
  say(card.rest, parts.join(", "));
}

/** One who holds, with the time that is left. */
function makeHolder(item, hold) {
  const bar = leaseBar();
  const line = h("li.hold", {}, h("span.holding", {}, person(hold), h("span.of", {}, share(item, hold)), stateBadge(hold)), bar);
  line.bar = bar;
  return line;
}

function updateHolder(line, hold) {
  setBar(line.bar, hold);
}

/** One who waits, and since when. */
export function makeWaiter(waiter) {
  const units = waiter.units > 1 ? h("span.of", {}, `${waiter.units} units`) : null;
  const priority = waiter.priority ? h("span.of", {}, `priority ${waiter.priority}`) : null;
  return h("li", {}, person(waiter), units, priority, when(waiter.since, undefined, { tabindex: "0" }));
}
