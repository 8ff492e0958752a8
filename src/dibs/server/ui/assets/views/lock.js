// One lock: who has it, who waits, what has happened to it, and how to end its leases.

import { now } from "../clock.js";
import { h, keyed, mark, say } from "../dom.js";
import { empty } from "../empty.js";
import * as live from "../live.js";
import { decoded, nameNode } from "../names.js";
import { count, inLine, person, share, stateBadge } from "../people.js";
import { leaseBar, setBar } from "../bars.js";
import { releaseDialog } from "../release.js";
import * as session from "../session.js";
import { status } from "../statuses.js";
import { follow } from "../stream.js";
import { when } from "../times.js";
import { line } from "./events.js";
import { makeWaiter } from "./queues.js";

const HISTORY = 100;
const FEW = 3;

export function lockView([kind = "", spelt = ""]) {
  const name = nameOf(spelt);
  if (!name) return { element: h("section.view", {}, empty("No such page", "The address names no lock.")), stop: () => {} };
  const view = new LockPage(kind, spelt, name);
  return { element: view.element, stop: () => view.stop() };
}

function nameOf(spelt) {
  try {
    return spelt ? decoded(spelt) : null;
  } catch {
    return null;
  }
}

class LockPage {
  constructor(kind, spelt, name) {
    Object.assign(this, { kind, spelt, name });
    this.state = h("p.state", { role: "status" });
    this.holders = h("ol.holders");
    this.held = h("section", { "aria-label": "Holders", hidden: true }, h("h2", {}, "Held by"), this.holders);
    this.waiters = h("ol.people.line");
    this.line = h("h2", {}, "Queue");
    this.history = h("ol.events.short");
    this.none = h("p.help", {}, "No events since this server started.");
    this.force = h("button.danger", { type: "button", hidden: true, onclick: () => this.askForce(null) }, "Force release…");
    this.element = h(
      "section.view.lock",
      {},
      h("header.title", {}, h("h1", {}, h("span.kind", {}, kind), nameNode(name)), h("div.fields", {}, copyButton(name), this.force)),
      this.state,
      this.held,
      h("section", { "aria-label": "Queue" }, this.line, this.waiters),
      h("section", { "aria-label": "History" }, h("h2", {}, "History"), this.none, this.history),
    );
    this.onNews = () => this.drawHistory();
    live.news.addEventListener("event", this.onNews);
    this.tail = follow(`v1/watch/locks/base64:${spelt}?kind=${encodeURIComponent(kind)}`, {
      told: (what, data) => what === "status" && this.take(status(data, now())),
      state: (word, problem) => word === "refused" && this.refused(problem),
    });
    this.drawHistory();
  }

  take(found) {
    this.status = found;
    this.held.hidden = !found.holders.length;
    say(this.state, summary(found));
    this.force.hidden = !found.holders.length || !session.may("force", this.name);
    say(this.force, found.holding > 1 ? "Force release of all…" : "Force release…");
    mark(this.holders, "data-many", found.holders.length > FEW);
    const canForce = found.holding > 1 && session.may("force", this.name);
    const ask = canForce ? (hold) => this.askForce(hold) : null;
    keyed(this.holders, found.holders, (each) => `${each.lease} ${each.token} ${each.state}`, (hold) => makeHold(found, hold, ask), (element, hold) => setBar(element.bar, hold));
    keyed(this.waiters, found.waiters, (each) => each.lease, makeWaiter);
    say(this.line, found.waiting ? `Queue: ${inLine(found.waiting)}` : "Queue: empty");
  }

  drawHistory() {
    const found = live.latest().filter((event) => event.name === this.spelt && event.kind === this.kind);
    keyed(this.history, found.slice(-HISTORY).reverse(), (event) => event, line);
    this.none.hidden = found.length > 0;
  }

  refused(problem) {
    say(this.state, problem.message);
  }

  askForce(hold) {
    const dialog = releaseDialog({ kind: this.kind, spelt: this.spelt, name: this.name, status: this.status, hold });
    this.element.append(dialog);
    dialog.showModal();
  }

  stop() {
    this.tail.stop();
    live.news.removeEventListener("event", this.onNews);
  }
}

function summary({ holders, holding, capacity, lastToken }) {
  const shown = holding > holders.length ? ` The ${holders.length} whose leases end first are shown.` : "";
  const last = lastToken ? `The last token was ${lastToken}.` : "It was never granted.";
  const of = capacity > 1 ? ` Its capacity is ${capacity.toLocaleString("en")} units.` : "";
  return holders.length ? `Held by ${count(holding, "holder")}.${of}${shown}` : `Free. ${last}${of}`;
}

function makeHold(found, hold, ask) {
  const bar = leaseBar();
  const fact = (style, word, ...value) => h(`div.${style}`, {}, h("dt", {}, word), h("dd", {}, ...value));
  const facts = [
    fact("token", "Token", h("b", {}, hold.token || "none")),
    fact("held-for", "Held for", when(hold.since, undefined, { tabindex: "0" })),
    fact("ends", "Ends in", bar),
    share(found, hold) ? fact("has", "Holds", share(found, hold)) : null,
    hold.lease ? fact("fingerprint", "Lease", h("code", {}, hold.lease)) : null,
  ];
  const end = ask && hold.lease ? h("button.plain", { type: "button", onclick: () => ask(hold) }, "End this lease…") : null;
  const element = h("li.holder-card", {}, h("p", {}, person(hold, 200), stateBadge(hold)), h("dl", {}, ...facts.filter(Boolean)), end);
  element.bar = bar;
  return element;
}

/** Names of any bytes are hard to type. */
function copyButton(name) {
  const copy = async () => {
    await navigator.clipboard.writeText(nameNode(name).textContent);
    say(button, "Copied");
    setTimeout(() => say(button, "Copy the name"), 1_500);
  };
  const button = h("button.plain", { type: "button", onclick: () => copy().catch(() => say(button, "The browser did not allow copying")) }, "Copy the name");
  return button;
}
