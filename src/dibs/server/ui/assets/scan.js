// Keys in use, page by page, as the service lists them.

import * as api from "./api.js";
import { now } from "./clock.js";
import { decoded, encoded } from "./names.js";
import { status } from "./statuses.js";

/** What fetches pages of the keys of a kind (every one, if it is empty) whose names begin with `prefix`. */
export function scanning(kind, prefix) {
  const which = chosen(kind, prefix);
  return async (after, limit) => {
    const query = { ...which, limit, observed: true, ...(after ? { cursor: after } : {}) };
    const asked = now();
    const page = await api.get("v1/scan", query);
    return { items: page.items.map((each) => status(each, asked, page.leases)), cursor: page.cursor ?? null };
  };
}

function chosen(kind, prefix) {
  if (kind) return { prefix: encoded(`${kind}:${prefix}`) };
  return prefix ? { names: encoded(prefix) } : {};
}

/** What keys are sorted by: their bytes. */
export function orderOf(key) {
  return String.fromCharCode(...decoded(key));
}

/** Whether an event is about one of those. */
export function concerning(kind, prefix) {
  const begins = encoded(prefix).slice(0, Math.floor((new TextEncoder().encode(prefix).length * 4) / 3));
  return (event) => (!kind || event.kind === kind) && event.name.startsWith(begins);
}
