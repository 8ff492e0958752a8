// Leaders: who leads, in which term, since when, and who would be next.

import { leaseBar, setBar } from "../bars.js";
import { h, keyed, say } from "../dom.js";
import { empty } from "../empty.js";
import { count, person, stateBadge } from "../people.js";
import { span, when } from "../times.js";
import { titleOf } from "../title.js";
import { listing } from "./several.js";
import { makeWaiter } from "./queues.js";

const FEW = 4;

export function leadersView(_, params) {
  const nothing = empty("No leaders", "An election has one leader at a time. When its lease ends, the next candidate leads. In a program:", "async with LeaderElection(\"billing\") as term:\n    ...");
  return listing({ title: "Leaders", kind: "leader", one: "election", params, nothing, make, update });
}

function make(item) {
  const card = h("article.card.leader");
  card.term = h("span.size");
  card.who = h("p.leads");
  card.bar = leaseBar();
  card.line = h("ol.people.line");
  card.rest = h("p.rest");
  card.append(titleOf(item, card.term), card.who, card.bar, card.line, card.rest);
  return card;
}

function update(card, item) {
  const [hold] = item.holders;
  say(card.term, hold ? `token ${hold.token}` : "nobody leads");
  const who = hold ? `${hold.lease} ${hold.state}` : "";
  if (card.shown !== who) {
    const parts = hold ? [person(hold), stateBadge(hold), " ", when(hold.since, (seconds) => `for ${span(seconds)}`, { tabindex: "0" })] : [h("span.free", {}, "Waiting for the next candidate.")];
    card.who.replaceChildren(...parts.filter(Boolean));
  }
  card.shown = who;
  setBar(card.bar, hold ?? null);
  keyed(card.line, item.waiters.slice(0, FEW), (each) => each.lease, makeWaiter);
  const more = item.waiting - Math.min(item.waiters.length, FEW);
  say(card.rest, item.waiting === 0 ? "No other candidate is waiting." : more > 0 ? `and ${count(more, "more candidate")}` : "");
}
