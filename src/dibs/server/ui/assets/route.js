// Where one is: a view and what it is told, in the part of the address after the #.

/** What the address says: `#/now?prefix=jobs/` is `{ path: ["now"], params }`. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean), params: new URLSearchParams(query) };
}

/** An address. */
export function to(path, params = {}) {
  const told = new URLSearchParams(Object.entries(params).filter(([, value]) => value));
  const query = told.toString();
  return `#/${path.join("/")}${query ? `?${query}` : ""}`;
}

/** The page of one lock. */
export function toLock(kind, name) {
  return to(["lock", kind, name]);
}

/** Remember what a view was told, so that going back, and a bookmark, find it again. */
export function keep(changes) {
  const { path, params } = here();
  const merged = { ...Object.fromEntries(params), ...changes };
  history.replaceState(null, "", to(path, merged));
}

/** Whoever has a sign-in address should not leave it behind in the history. */
export function takeTicket() {
  const found = /^#ticket=(.+)$/.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1]; // it is no ticket, as the service will say
  }
}
