// Audit: who changed what, for administrators.

import * as api from "../api.js";
import { empty, errorLine, h, heading, setText } from "../dom.js";
import { fact } from "../holders.js";
import { decoded, nameNode } from "../names.js";
import { exact } from "../time.js";

const PAGE = 50;

export function auditView() {
  const trouble = errorLine();
  const list = h("ol.events.audit", { "aria-label": "Audit log, the newest first" });
  const older = h("button.plain.more", { type: "button", hidden: true, onclick: load }, "Older");
  const reload = h("button.plain", { type: "button", onclick: again }, "Reload");
  const total = h("span.total", { role: "status" });
  const text = "Sign-ins, changes of API keys, force releases and denied requests appear here.";
  const nothing = h("div", { hidden: true }, empty("No entries yet", text));
  const element = h("section.view", {}, heading("Audit", total, reload), trouble.element, nothing, list, older);
  let before = null;
  let isStopped = false;

  async function load() {
    try {
      let page;
      do {
        page = await api.get("v1/audit", { limit: PAGE, ...(before ? { before } : {}) });
        if (isStopped) return;
        before = page.next;
        list.append(...page.entries.map(entryLine));
      } while (!page.entries.length && before);
      trouble.clear();
      nothing.hidden = list.childElementCount > 0;
      older.hidden = !before;
      setText(total, `${list.childElementCount.toLocaleString("en")}${before ? " and more" : ""}, newest first`);
    } catch (error) {
      if (!isStopped) trouble.show(error);
    }
  }

  function again() {
    before = null;
    list.replaceChildren();
    load();
  }

  load();
  return { element, stop: () => (isStopped = true) };
}

function entryLine(entry) {
  const who = entry.who ? nameNode(entry.who, 40) : h("span.soft", {}, "the service");
  return h(
    "li.event",
    {},
    h("time", { datetime: new Date(entry.at * 1000).toISOString() }, exact(entry.at)),
    h("span.event-what", { "data-what": entry.what }, entry.what),
    h("span.event-name", {}, entry.about ? nameNode(decoded(entry.about), 60) : null),
    h("span.event-who", {}, who, entry.key ? h("span.note", {}, `(${entry.key})`) : null),
    h("span.event-rest.facts", {}, ...facts(entry.detail ?? {})),
  );
}

function facts(detail) {
  const known = Object.entries(detail).filter(([, value]) => value !== null && value !== false && value !== "");
  return known.map(([name, value]) => fact(name.replaceAll("_", " "), nameNode(textOf(value), 200)));
}

function textOf(value) {
  if (typeof value === "string") return value;
  return value === true ? "yes" : JSON.stringify(value);
}
