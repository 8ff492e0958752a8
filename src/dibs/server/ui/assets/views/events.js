// Events: what happens to locks, as it happens.

import { choiceField, KINDS, prefixField, toLock } from "../address.js";
import { empty, h, heading, keyed, setAttribute, setText } from "../dom.js";
import { happened, person } from "../holders.js";
import * as live from "../live.js";
import { decoded, nameNode } from "../names.js";
import { concerning } from "../status.js";
import { clockTime, exact } from "../time.js";

const MOST = 300;
const WHATS = ["", "granted", "queued", "left", "released", "expired", "revoked", "freed", "resized"];

export function eventsView(_, params) {
  const filter = { prefix: params.get("prefix") ?? "", kind: params.get("kind") ?? "", what: params.get("what") ?? "" };
  let paused = null;
  const total = h("span.total", { role: "status" });
  const list = h("ol.events", { "aria-label": "Events, the latest first" });
  const nothing = h("div", { hidden: true });
  const pause = h("button.plain", { type: "button", "aria-pressed": "false", onclick: toggle }, "Pause");
  const set = (change) => {
    Object.assign(filter, change);
    draw();
  };
  const whats = WHATS.map((word) => [word, word || "everything"]);
  const fields = [
    prefixField(filter.prefix, (prefix) => set({ prefix })),
    choiceField("Kind", "kind", KINDS, filter.kind, (kind) => set({ kind })),
    choiceField("What", "what", whats, filter.what, (what) => set({ what })),
    pause,
  ];
  const element = h("section.view", {}, heading("Events", total, ...fields), nothing, list);

  function toggle() {
    paused = paused ? null : live.latest();
    setAttribute(pause, "aria-pressed", String(paused !== null));
    setText(pause, paused ? "Resume" : "Pause");
    draw();
  }

  function draw() {
    const concerns = concerning(filter.kind, filter.prefix);
    const isWanted = (event) => concerns(event) && (!filter.what || event.what === filter.what);
    const all = live.latest();
    const found = (paused ?? all).filter(isWanted);
    const later = paused ? all.slice(all.indexOf(paused.at(-1)) + 1).filter(isWanted).length : 0;
    keyed(list, found.slice(-MOST).reverse(), (event) => event, eventLine);
    const words = found.length > MOST ? `latest ${MOST} events` : "";
    setText(total, paused ? `paused, ${later.toLocaleString("en")} since` : words);
    nothing.hidden = found.length > 0;
    if (!found.length) nothing.replaceChildren(emptyText(filter));
  }

  const stopped = new AbortController();
  for (const each of ["event", "reset"]) live.news.addEventListener(each, draw, { signal: stopped.signal });
  draw();
  return { element, stop: () => stopped.abort() };
}

function emptyText({ prefix, kind, what }) {
  if (prefix || kind || what) return empty("No match", "No recent event has this prefix and kind. Renewals are not shown here.");
  const text = "Grants, waits, releases and expiries appear here as they happen. To cause some:";
  return empty("No events yet", text, "dibs run jobs/first -- sleep 5");
}

/** A line for one event. */
export function eventLine(event) {
  const when = event.found ? `${exact(event.at)}, when it was found` : exact(event.at);
  const link = h("a", { href: toLock(event.kind, event.name) }, nameNode(decoded(event.name), 60));
  const text = happened(event);
  const reason = event.reason ? h("span.reason", {}, nameNode(event.reason, 80)) : null;
  return h(
    "li.event",
    {},
    h("time", { title: when }, clockTime(event.at)),
    h("span.event-what", { "data-what": event.what }, event.what),
    h("span.event-name", {}, h("span.kind", {}, event.kind), link),
    h("span.event-who", {}, person(event)),
    h("span.event-rest", {}, text, text && reason ? ", " : null, reason),
    h("span.event-token", { title: "Fencing token" }, event.token || ""),
  );
}
