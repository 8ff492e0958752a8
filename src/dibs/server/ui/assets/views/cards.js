// Queues, pools and leaders: a card for each.

import { prefixField } from "../address.js";
import * as api from "../api.js";
import { empty, errorLine, h, heading, keyed, setAttribute, setText } from "../dom.js";
import { cardTitle, count, holdLine, leaseBar, person, setBar, stateBadge, updateHold, waiterLine } from "../holders.js";
import { looking } from "../live.js";
import { encoded, shown } from "../names.js";
import { concerning, isExpiring, scanning, statusOf } from "../status.js";
import { now, since, span } from "../time.js";

const PAGE = 100;
const FEW = 6; // holders and waiters on a card

/** A view of cards. `load(prefix, most)` returns `{ items, isMore, words }`. */
function cardsView({ title, kind, params, nothing, load, make, update }) {
  let prefix = params.get("prefix") ?? "";
  let most = PAGE;
  const trouble = errorLine();
  const total = h("span.total", { role: "status" });
  const cards = h("div.cards");
  const none = h("div", { hidden: true }, nothing);
  const field = prefixField(prefix, (value) => {
    prefix = value;
    most = PAGE;
    loop.again();
  });
  const onMore = () => {
    most += PAGE;
    loop.again();
  };
  const more = h("button.plain.more", { type: "button", hidden: true, onclick: onMore }, "Show more");
  const element = h("section.view", {}, heading(title, total, field), trouble.element, none, cards, more);

  const look = async () => {
    const { items, isMore, words } = await load(prefix, most);
    trouble.clear();
    none.hidden = items.length > 0;
    more.hidden = !isMore;
    setText(total, items.length ? words : "");
    keyed(cards, items, (item) => item.key, make, update);
  };
  const concerns = (event) => concerning(kind, prefix)(event);
  const loop = looking(look, { every: 2, concerns, failed: trouble.show });
  return { element, stop: loop.stop };
}

/** Return a `load` for all keys of a kind. A page can have fewer items than its limit. */
function loading(kind, one) {
  return async (prefix, most) => {
    const fetchPage = scanning(kind, prefix);
    const items = [];
    let cursor = null;
    do {
      const page = await fetchPage(cursor, Math.min(most - items.length, 1_000));
      items.push(...page.items);
      cursor = page.cursor;
    } while (cursor !== null && items.length < most);
    const isMore = cursor !== null;
    return { items, isMore, words: `${count(items.length, one)}${isMore ? " and more" : ""}` };
  };
}

// -- queues ---------------------------------------------------------------------------------------

export function queuesView(_, params) {
  const text = "Nothing waits for a lease. A queue appears here as soon as a program waits, for instance with:";
  const nothing = empty("No queues", text, "dibs run jobs/first --wait 60 -- true");
  return cardsView({ title: "Queues", kind: "", params, nothing, load: loadQueues, make: makeQueue, update: updateQueue });
}

async function loadQueues(prefix, most) {
  const asked = now();
  const limit = Math.min(most, 200);
  const found = await api.get("v1/queues", { limit, ...(prefix ? { names: encoded(prefix) } : {}) });
  const items = found.items.map((each) => statusOf(each, asked));
  const total = count(found.count, "queue") + (found.complete === false ? " and more" : "");
  const isMore = found.count > items.length;
  const words = isMore ? `${total}, the ${items.length} longest are shown` : total;
  return { items, isMore: isMore && most < 200, words };
}

function makeQueue(item) {
  const card = h("article.card.queue");
  card.size = h("span.size");
  card.holders = h("ul.people");
  card.waiters = h("ol.people.line");
  card.rest = h("p.rest");
  card.append(cardTitle(item, card.size, h("span.kind", {}, item.kind)), card.holders, card.waiters, card.rest);
  return card;
}

function updateQueue(card, item) {
  setText(card.size, waitingWords(item.waiting));
  const make = (hold) => holdLine(item, hold);
  keyed(card.holders, item.holders.slice(0, FEW), (each) => each.lease, make, updateHold);
  keyed(card.waiters, item.waiters.slice(0, FEW), (each) => each.lease, waiterLine);
  const holders = item.holding - Math.min(item.holders.length, FEW);
  const waiters = item.waiting - Math.min(item.waiters.length, FEW);
  const parts = [holders > 0 ? count(holders, "other holder") : "", waiters > 0 ? `${waiters.toLocaleString("en")} more waiting` : ""];
  setText(card.rest, parts.filter(Boolean).join(", "));
}

function waitingWords(number) {
  return `${number.toLocaleString("en")} waiting`;
}

// -- leaders --------------------------------------------------------------------------------------

export function leadersView(_, params) {
  const text = "An election has one leader at a time. When its lease ends, the next candidate leads. In a program:";
  const nothing = empty("No leaders", text, 'async with LeaderElection("billing") as term:\n    ...');
  const load = loading("leader", "election");
  return cardsView({ title: "Leaders", kind: "leader", params, nothing, load, make: makeLeader, update: updateLeader });
}

function makeLeader(item) {
  const card = h("article.card.leader");
  card.token = h("span.size");
  card.who = h("p");
  card.bar = leaseBar();
  card.line = h("ol.people.line");
  card.rest = h("p.rest");
  card.append(cardTitle(item, card.token), card.who, card.bar, card.line, card.rest);
  return card;
}

function updateLeader(card, item) {
  const [hold] = item.holders;
  setText(card.token, hold ? `token ${hold.token}` : "nobody leads");
  const leader = hold ? `${hold.lease} ${hold.state}` : "none";
  if (card.leader !== leader) card.who.replaceChildren(...(hold ? leaderParts(hold) : [h("span.soft", {}, "Waiting for the next candidate.")]));
  card.leader = leader;
  setBar(card.bar, hold ?? null);
  keyed(card.line, item.waiters.slice(0, FEW), (each) => each.lease, waiterLine);
  const more = item.waiting - Math.min(item.waiters.length, FEW);
  setText(card.rest, item.waiting === 0 ? "No other candidate is waiting." : more > 0 ? `and ${count(more, "more candidate")}` : "");
}

function leaderParts(hold) {
  const term = since(hold.since, { tabindex: "0" }, { words: (seconds) => `for ${span(seconds)}` });
  return [person(hold), stateBadge(hold), " ", term].filter(Boolean);
}

// -- pools ----------------------------------------------------------------------------------------

const MOST_SLOTS = 1_024;
const BIG = 64; // a card with more slots has a row of its own

export function poolsView(_, params) {
  const text = "A semaphore has several holders at a time, each with its own slot. To take one of three:";
  const nothing = empty("No pool is in use", text, "dibs run gpu --capacity 3 -- sleep 60");
  const load = loading("semaphore", "pool");
  return cardsView({ title: "Pools", kind: "semaphore", params, nothing, load, make: makePool, update: updatePool });
}

function makePool(item) {
  const card = h("article.card.pool");
  card.size = h("span.size");
  card.slots = h("ol.slots", { "aria-label": "Slots" });
  card.about = h("p.slot-about", { "aria-live": "off" });
  card.rest = h("p.rest");
  card.append(cardTitle(item, card.size), card.slots, card.about, card.rest);
  const describe = (event) => {
    const slot = event.target.closest("li");
    setText(card.about, slot ? slotText(slot) : "");
  };
  card.slots.addEventListener("pointerover", describe);
  card.slots.addEventListener("focusin", describe);
  card.slots.addEventListener("keydown", (event) => walk(event, card.slots));
  return card;
}

function updatePool(card, item) {
  const capacity = item.capacity ?? 0;
  setAttribute(card, "data-size", capacity > BIG ? "big" : null);
  setText(card.size, capacity ? `${item.used} of ${capacity} taken` : `${item.used} taken`);
  const holds = new Map(item.holders.flatMap((hold) => hold.slots.map((slot) => [slot, hold])));
  const numbers = Array.from({ length: capacity > MOST_SLOTS ? 0 : capacity }, (_, slot) => slot);
  const slots = numbers.map((slot) => ({ slot, hold: holds.get(slot) ?? null }));
  keyed(card.slots, slots, ({ slot }) => slot, makeSlot, updateSlot);
  if (!card.slots.querySelector("[tabindex='0']")) card.slots.firstElementChild?.setAttribute("tabindex", "0");
  card.about.hidden = !slots.length;
  const unlisted = item.holding - item.holders.length;
  const parts = [];
  if (capacity > MOST_SLOTS) parts.push("slots are not numbered");
  else if (unlisted > 0) parts.push(`${unlisted.toLocaleString("en")} more holders, whose slots are not shown`);
  if (item.waiting) parts.push(waitingWords(item.waiting));
  setText(card.rest, parts.join(", "));
}

function makeSlot({ slot }) {
  return h("li", { tabindex: "-1" }, String(slot));
}

function updateSlot(cell, { slot, hold }) {
  cell.slot = slot;
  cell.hold = hold;
  setAttribute(cell, "data-state", !hold ? "free" : isExpiring(hold) ? "expiring" : hold.state);
  setAttribute(cell, "aria-label", slotText(cell));
}

function slotText({ slot, hold }) {
  if (!hold) return `Slot ${slot} is free`;
  const note = hold.note ? ` (${shown(hold.note)})` : "";
  const left = `${span(hold.ends - now())} left`;
  return `Slot ${slot}: ${shown(hold.owner)}${note}, token ${hold.token}, for ${span(now() - hold.since)}, ${left}`;
}

/** Arrows move between slots; Tab leaves them. */
function walk(event, slots) {
  const cells = [...slots.children];
  const at = cells.indexOf(event.target.closest("li"));
  const row = getComputedStyle(slots).gridTemplateColumns.split(" ").length;
  const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row };
  const cell = cells[at + moves[event.key]];
  if (!cell) return;
  event.preventDefault();
  cells[at].tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
}
