// Events: what happens to locks, as it happens.

import { h, keyed, mark, say } from "../dom.js";
import { empty } from "../empty.js";
import { choiceField, KINDS, prefixField } from "../filter.js";
import * as live from "../live.js";
import { decoded, nameNode } from "../names.js";
import { happened, person } from "../people.js";
import { toLock } from "../route.js";
import { concerning } from "../scan.js";
import { clockTime, exact } from "../times.js";

const MOST = 300;
const WHATS = ["", "granted", "queued", "left", "released", "expired", "revoked", "freed", "resized"];

export function eventsView(_, params) {
  const wanted = { prefix: params.get("prefix") ?? "", kind: params.get("kind") ?? "", what: params.get("what") ?? "" };
  let paused = null;
  const total = h("span.total", { role: "status" });
  const list = h("ol.events", { "aria-label": "Events, the latest first" });
  const nothing = h("div", { hidden: true });
  const pause = h("button.plain", { type: "button", "aria-pressed": "false", onclick: () => toggle() }, "Pause");
  const set = (change) => {
    Object.assign(wanted, change);
    draw();
  };
  const fields = h(
    "div.fields",
    {},
    prefixField(wanted.prefix, (prefix) => set({ prefix })),
    choiceField("Kind", "kind", KINDS, wanted.kind, (kind) => set({ kind })),
    choiceField("What", "what", WHATS.map((word) => [word, word || "everything"]), wanted.what, (what) => set({ what })),
    pause,
  );
  const element = h("section.view", {}, h("header.title", {}, h("h1", {}, "Events"), total, fields), nothing, list);

  function toggle() {
    paused = paused ? null : live.latest();
    mark(pause, "aria-pressed", String(paused !== null));
    say(pause, paused ? "Resume" : "Pause");
    draw();
  }

  function draw() {
    const concerns = concerning(wanted.kind, wanted.prefix);
    const wants = (event) => concerns(event) && (!wanted.what || event.what === wanted.what);
    const all = live.latest();
    const found = (paused ?? all).filter(wants);
    const later = paused ? all.slice(all.indexOf(paused.at(-1)) + 1).filter(wants).length : 0;
    keyed(list, found.slice(-MOST).reverse(), (event) => event, line);
    say(total, paused ? `paused, ${later.toLocaleString("en")} since` : found.length > MOST ? `latest ${MOST} events` : "");
    nothing.hidden = found.length > 0;
    if (!found.length) nothing.replaceChildren(nothingThere(wanted));
  }

  live.news.addEventListener("event", onNews);
  live.news.addEventListener("reset", onNews);
  function onNews() {
    if (paused) say(total, "paused");
    draw();
  }
  draw();
  const stop = () => {
    live.news.removeEventListener("event", onNews);
    live.news.removeEventListener("reset", onNews);
  };
  return { element, stop };
}

/** One event. */
export function line(event) {
  const name = decoded(event.name);
  const parts = [
    h("time", { title: event.found ? `${exact(event.at)}, when it was found` : exact(event.at) }, clockTime(event.at)),
    h("span.event-what", { "data-what": event.what }, event.what),
    h("span.event-name", {}, h("span.kind", {}, event.kind), h("a", { href: toLock(event.kind, event.name) }, nameNode(name, 40))),
    h("span.event-who", {}, person(event, 40)),
    h("span.event-token", { title: "fencing token" }, event.token || ""),
    h("span.event-rest", {}, happened(event), event.reason && happened(event) ? ", " : null, event.reason ? h("span.reason", {}, nameNode(event.reason, 80)) : null),
  ];
  return h("li.event", {}, ...parts);
}

function nothingThere({ prefix, kind, what }) {
  if (prefix || kind || what) return empty("No match", "No recent event has this prefix and kind. Renewals are not shown here.");
  return empty("No events yet", "Grants, waits, releases and expiries appear here as they happen. To cause some:", "dibs run jobs/first -- sleep 5");
}
