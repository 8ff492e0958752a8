// Holders and waiters, in the words that the command line has too.

import { h } from "./dom.js";
import { nameNode } from "./names.js";
import { span } from "./times.js";

const STATES = {
  unclaimed: "granted, not yet claimed",
  revoked: "revoked",
  retained: "retained",
};

/** Who it is, and what for. */
export function person(one, most = 40) {
  const note = one.note ? h("span.note", {}, nameNode(one.note, most)) : null;
  return h("span.person", {}, h("span.owner", {}, nameNode(one.owner || "nobody", most)), note);
}

/** What is said of a hold's state; nothing of one that is just held. */
export function stateBadge(hold) {
  const word = STATES[hold.state];
  return word ? h("span.badge", { "data-state": hold.state }, word) : null;
}

/** What it has: slots, a side of a readers-writer lock, units. */
export function share(status, hold) {
  if (status.kind === "rwlock") return hold.units === null ? "writing" : "reading";
  if (status.capacity === null || status.capacity <= 1) return "";
  if (hold.slots.length) return `slot${hold.slots.length > 1 ? "s" : ""} ${ranges(hold.slots)}`;
  return hold.units > 1 ? `${hold.units} units` : "";
}

/** 1, 2, 3, 7 as "1–3, 7". */
function ranges(numbers) {
  const parts = [];
  for (const each of [...numbers].sort((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last && last[1] === each - 1) last[1] = each;
    else parts.push([each, each]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
}

/** So many of something. */
export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** How many wait. */
export function inLine(number) {
  return `${number.toLocaleString("en")} waiting`;
}

/** What has happened, in few words. */
export function happened(event) {
  const parts = [];
  if (event.slots.length && !(event.slots.length === 1 && event.kind !== "semaphore")) {
    parts.push(`slot${event.slots.length > 1 ? "s" : ""} ${ranges(event.slots)}`);
  }
  if (event.waited) parts.push(`after ${span(event.waited)} in the queue`);
  if (event.held_for != null && event.what !== "renewed") parts.push(`held for ${span(event.held_for)}`);
  return parts.join(", ");
}
