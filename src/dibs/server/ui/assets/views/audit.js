// Audit: who did what of consequence, for administrators.

import * as api from "../api.js";
import { h, say } from "../dom.js";
import { empty, trouble } from "../empty.js";
import { decoded, nameNode } from "../names.js";
import { exact } from "../times.js";

const PAGE = 50;

export function auditView() {
  const told = trouble();
  const rows = h("tbody");
  const columns = ["When", "Action", "Who", "Target", "Details"];
  const table = h("div.scrolls", { tabindex: "0", role: "region", "aria-label": "Audit log" }, h("table.audit", {}, h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col" }, each)))), rows));
  const older = h("button.plain.more", { type: "button", hidden: true, onclick: () => load() }, "Older");
  const newest = h("button.plain", { type: "button", onclick: () => again() }, "Reload");
  const total = h("span.total", { role: "status" });
  const nothing = h("div", { hidden: true }, empty("No entries yet", "Sign-ins, changes of API keys, force releases and denied requests appear here."));
  const element = h("section.view", {}, h("header.title", {}, h("h1", {}, "Audit"), total, h("div.fields", {}, newest)), told.element, nothing, table, older);
  let before = null;
  let over = false;

  async function load() {
    try {
      let page;
      do {
        page = await api.get("v1/audit", { limit: PAGE, ...(before ? { before } : {}) });
        before = page.next;
        if (over) return;
        rows.append(...page.entries.map(row));
      } while (!page.entries.length && before);
      told.clear();
      nothing.hidden = rows.childElementCount > 0;
      table.hidden = !nothing.hidden;
      older.hidden = !before;
      say(total, `${rows.childElementCount.toLocaleString("en")}${before ? " and more" : ""}, newest first`);
    } catch (error) {
      if (!over) told.tell(error);
    }
  }

  function again() {
    before = null;
    rows.replaceChildren();
    load();
  }

  load();
  return { element, stop: () => (over = true) };
}

function row(entry) {
  const who = entry.who ? nameNode(entry.who, 40) : h("span.free", {}, "the service");
  const about = entry.about ? nameNode(decoded(entry.about), 44) : "";
  return h(
    "tr",
    {},
    h("td", {}, h("time", { datetime: new Date(entry.at * 1000).toISOString() }, exact(entry.at))),
    h("td", {}, h("span.audit-what", { "data-what": entry.what }, entry.what)),
    h("td", {}, who, entry.key ? h("span.note", {}, entry.key) : null),
    h("td", {}, about),
    h("td.detail", {}, ...details(entry.detail ?? {})),
  );
}

function details(detail) {
  const told = Object.entries(detail).filter(([, value]) => value !== null && value !== false && value !== "");
  return told.map(([name, value]) => h("span.fact", {}, h("span.fact-name", {}, name.replaceAll("_", " ")), " ", nameNode(text(value), 200)));
}

function text(value) {
  return typeof value === "string" ? value : value === true ? "yes" : JSON.stringify(value);
}
