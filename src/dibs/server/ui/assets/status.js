// Who holds and who waits, as the service answers it, with times of day instead of durations.

import * as api from "./api.js";
import { decoded, encoded, split } from "./names.js";
import { now } from "./time.js";

const MANY = 2 ** 20; // this many units mean "all there are"
const KNOWN = 20_000; // leases whose length is remembered

/** What is known of a lease's length: `{ whole, ends }`, by its fingerprint. */
const lengths = new Map();

/** Convert a key's status. `asked` is when it was asked for. */
export function statusOf(answer, asked) {
  const { kind, name } = split(answer.key);
  return {
    key: answer.key,
    kind,
    name,
    encodedName: encoded(name),
    capacity: answer.capacity >= MANY ? null : answer.capacity,
    waiting: Math.max(answer.waiting ?? 0, answer.waiters?.length ?? 0),
    holding: Math.max(answer.holding ?? 0, answer.holders?.length ?? 0),
    used: answer.used ?? 0,
    lastToken: answer.last_token ?? 0,
    holders: (answer.holders ?? []).map((each) => holder(each, asked)),
    waiters: (answer.waiters ?? []).map((each) => waiter(each, asked)),
  };
}

function holder(each, asked) {
  return {
    ...person(each),
    token: each.token,
    slots: each.slots ?? [],
    state: each.state ?? "held",
    since: asked - each.held_for,
    ends: asked + each.expires_in,
    whole: lengthOf(each, asked),
  };
}

function waiter(each, asked) {
  return { ...person(each), priority: each.priority ?? 0, since: asked - each.waited };
}

function person(each) {
  const units = each.units ?? 1;
  return { lease: each.lease, owner: each.owner, note: each.note ?? "", units: units >= MANY ? null : units };
}

/**
 * Estimate a lease's length in seconds: what was left after its last renewal. The service does not report it.
 * Until the page has seen a renewal, a lease that is younger than what is left of it counts as never renewed.
 */
function lengthOf({ lease, held_for: age, expires_in: left }, asked) {
  if (!lease) return left;
  const ends = asked + left;
  const known = lengths.get(lease) ?? { whole: age <= left ? age + left : left, ends };
  if (ends > known.ends + 1) known.whole = left;
  known.whole = Math.max(known.whole, left);
  known.ends = ends;
  lengths.delete(lease);
  lengths.set(lease, known);
  if (lengths.size > KNOWN) lengths.delete(lengths.keys().next().value); // the one not seen for longest
  return known.whole;
}

/** Return the hold that ends first. */
export function firstToEnd({ holders }) {
  return holders.reduce((first, each) => (first && first.ends <= each.ends ? first : each), null);
}

/** Whether a hold is about to be lost: less than a fifth of its lease is left. A renewal comes much earlier. */
export function isExpiring(hold, at = now()) {
  return hold.state === "held" && hold.ends - at < hold.whole / 5;
}

/** Return a function that fetches a page of the keys of a kind (of all, if empty) with a prefix. */
export function scanning(kind, prefix) {
  const which = selection(kind, prefix);
  return async (after, limit) => {
    const asked = now();
    const page = await api.get("v1/scan", { ...which, limit, ...(after ? { cursor: after } : {}) });
    return { items: page.items.map((each) => statusOf(each, asked)), cursor: page.cursor ?? null };
  };
}

function selection(kind, prefix) {
  if (kind) return { prefix: encoded(`${kind}:${prefix}`) };
  return prefix ? { names: encoded(prefix) } : {};
}

/** Return what keys are sorted by: their bytes. */
export function orderOf(key) {
  return String.fromCharCode(...decoded(key));
}

/** Return a function that says whether an event is about one of these keys. */
export function concerning(kind, prefix) {
  const bytes = new TextEncoder().encode(prefix).length;
  const begins = encoded(prefix).slice(0, Math.floor((bytes * 4) / 3));
  return (event) => (!kind || event.kind === kind) && event.name.startsWith(begins);
}
