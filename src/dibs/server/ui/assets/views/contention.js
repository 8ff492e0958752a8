// Contention: wait and hold times by family of names, and whether renewals come in time.

import * as api from "../api.js";
import { h, keyed, say } from "../dom.js";
import { empty, trouble } from "../empty.js";
import { histogram } from "../histogram.js";
import { looking } from "../loop.js";
import { decoded, nameNode } from "../names.js";
import { count } from "../people.js";
import { to } from "../route.js";
import { fine, span } from "../times.js";

const MOST = 60;

export function contentionView() {
  const told = trouble();
  const total = h("span.total", { role: "status" });
  const cards = h("div.cards.wide");
  const nothing = h("div", { hidden: true }, empty("No data yet", "Wait and hold times count from the start of this server, by first directory: jobs/1 and jobs/2 both count as jobs/.", "dibs run jobs/first -- sleep 1"));
  const note = h("p.lead", {}, "As seen by this server since its start. A hold can be much longer than its ttl, as leases are renewed. If renewals come close to the ttl, use a longer ttl.");
  const element = h("section.view", {}, h("header.title", {}, h("h1", {}, "Contention"), total), note, told.element, nothing, cards);

  const look = async () => {
    const { bounds, families } = await api.get("v1/contention");
    const items = families.map((family) => ({ ...family, bounds })).sort(worst).slice(0, MOST);
    told.clear();
    nothing.hidden = items.length > 0;
    say(total, families.length ? `${count(families.length, "family", "families")}, the busiest first` : "");
    keyed(cards, items, (item) => `${item.kind}:${item.name}`, make, update);
  };
  const loop = looking(look, { every: 5, failed: told.tell });
  return { element, stop: loop.stop };
}

/** What waits most comes first, then what is granted most. */
function worst(one, other) {
  const weight = (family) => family.waited.count * (family.waited.p99 ?? 0);
  return weight(other) - weight(one) || other.grants - one.grants;
}

function make(item) {
  const card = h("article.card.family");
  const name = item.name ? nameNode(decoded(item.name), 44) : "all others";
  const prefix = item.name ? prefixOf(item.name) : null;
  card.size = h("span.size");
  card.words = h("p.words");
  card.waited = histogram("Waited", item.bounds);
  card.held = histogram("Held", item.bounds);
  card.append(
    h("h2", {}, h("span.kind", {}, item.kind), prefix ? h("a", { href: to(["now"], { prefix, kind: item.kind }) }, name) : name, card.size),
    card.words,
    h("div.histograms", {}, card.waited.element, card.held.element),
  );
  return card;
}

/** A directory can be looked up; folded digits cannot. */
function prefixOf(name) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(decoded(name));
    return text.endsWith("/") ? text : null;
  } catch {
    return null;
  }
}

function update(card, item) {
  say(card.size, `${count(item.grants, "grant")}${item.ttl ? `, ttl ${span(item.ttl)}` : ""}`);
  card.words.replaceChildren(...sentences(item));
  card.waited.show(item.waited);
  card.held.show(item.held, item.ttl);
}

function sentences({ waited, held, ttl, refused, expired, closest }) {
  const found = [];
  if (held.count && ttl) {
    found.push(`99 % of holds take at most ${fine(held.p99)}; the ttl is ${span(ttl)}.`);
  }
  if (waited.longest) found.push(`Waits: median ${fine(waited.p50)}, 99 % at most ${fine(waited.p99)}.`);
  if (closest !== null) found.push(h("strong", { "data-level": closest > 0.8 ? "warn" : "ok" }, `Leases were renewed or released within ${percent(closest)} of their ttl.`));
  if (expired) found.push(h("strong", { "data-level": "bad" }, `${count(expired, "lease")} expired: a holder died or was too slow.`));
  if (refused) found.push(`${count(refused, "try", "tries")} refused.`);
  return found.flatMap((each) => [each, " "]);
}

function percent(part) {
  const whole = part * 100;
  return whole < 1 ? "less than 1 %" : `${Math.round(whole).toLocaleString("en")} %`;
}
