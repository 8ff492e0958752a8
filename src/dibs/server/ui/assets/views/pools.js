// Pools: semaphores, slot by slot.

import { h, keyed, mark, say } from "../dom.js";
import { empty } from "../empty.js";
import { shown } from "../names.js";
import { inLine } from "../people.js";
import { listing } from "./several.js";
import { span } from "../times.js";
import { titleOf } from "../title.js";
import { now } from "../clock.js";

const MOST = 1_024;
const BIG = 64;

export function poolsView(_, params) {
  const nothing = empty("No pool is in use", "A semaphore has several holders at a time, each with its own slot. To take one of three:", "dibs run gpu --capacity 3 -- sleep 60");
  return listing({ title: "Pools", kind: "semaphore", one: "pool", params, nothing, make, update });
}

function make(item) {
  const card = h("article.card.pool");
  card.size = h("span.size");
  card.slots = h("ol.slots", { "aria-label": "Slots" });
  card.told = h("p.slot-told", { "aria-live": "off" });
  card.rest = h("p.rest");
  card.append(titleOf(item, card.size), card.slots, card.told, card.rest);
  const tell = (event) => {
    const slot = event.target.closest("li");
    say(card.told, slot ? told(slot) : "");
  };
  card.slots.addEventListener("pointerover", tell);
  card.slots.addEventListener("focusin", tell);
  card.slots.addEventListener("keydown", (event) => walk(event, card.slots));
  return card;
}

function update(card, item) {
  mark(card, "data-size", item.capacity > BIG ? "big" : null);
  const { used } = item;
  const capacity = item.capacity ?? 0;
  say(card.size, capacity ? `${used} of ${capacity} taken` : `${used} taken`);
  const holds = new Map(item.holders.flatMap((hold) => hold.slots.map((slot) => [slot, hold])));
  const slots = Array.from({ length: capacity > MOST ? 0 : capacity }, (_, slot) => ({ slot, hold: holds.get(slot) ?? null }));
  keyed(card.slots, slots, ({ slot }) => slot, makeSlot, updateSlot);
  if (!card.slots.querySelector("[tabindex='0']")) card.slots.firstElementChild?.setAttribute("tabindex", "0");
  const parts = [];
  const unlisted = item.holding - item.holders.length;
  if (capacity > MOST) parts.push("slots are not numbered");
  else if (unlisted > 0) parts.push(`${unlisted.toLocaleString("en")} more holders, whose slots are not shown`);
  if (item.waiting) parts.push(inLine(item.waiting));
  say(card.rest, parts.join(", "));
}

function makeSlot({ slot }) {
  return h("li", { tabindex: "-1" }, h("span.number", {}, String(slot)));
}

function updateSlot(cell, { slot, hold }) {
  cell.slot = slot;
  cell.hold = hold;
  const soon = hold && hold.ends - now() < hold.whole / 5;
  mark(cell, "data-state", hold ? (soon && hold.state === "held" ? "soon" : hold.state) : "free");
  mark(cell, "aria-label", told(cell));
}

function told({ slot, hold }) {
  if (!hold) return `Slot ${slot} is free`;
  const note = hold.note ? ` (${shown(hold.note)})` : "";
  const left = `${span(hold.ends - now())} left`;
  return `Slot ${slot}: ${shown(hold.owner)}${note}, token ${hold.token}, for ${span(now() - hold.since)}, ${left}`;
}

/** Arrows go from slot to slot; Tab goes past them. */
function walk(event, slots) {
  const cells = [...slots.children];
  const at = cells.indexOf(event.target.closest("li"));
  const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(cells), ArrowUp: -columns(cells) };
  const cell = cells[at + moves[event.key]];
  if (!cell) return;
  event.preventDefault();
  cells[at].tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
}

function columns(cells) {
  const below = cells.findIndex((cell) => cell.offsetTop > cells[0].offsetTop);
  return below < 0 ? cells.length : below;
}
