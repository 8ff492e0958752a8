// One lock: who holds it, who waits, what has happened to it; and the dialog that ends its leases.

import * as api from "../api.js";
import { empty, h, heading, keyed, setText } from "../dom.js";
import { count, fact, holdLine, person, updateHold, waiterLine } from "../holders.js";
import * as live from "../live.js";
import { decoded, nameNode, shown } from "../names.js";
import * as session from "../session.js";
import { statusOf } from "../status.js";
import { now, since } from "../time.js";
import { eventLine } from "./events.js";

const HISTORY = 100;

export function lockView([kind = "", encodedName = ""]) {
  const name = nameOf(encodedName);
  if (name) return new LockPage(kind, encodedName, name);
  return { element: h("section.view", {}, empty("No such page", "The address names no lock.")), stop: () => {} };
}

function nameOf(encodedName) {
  try {
    return encodedName ? decoded(encodedName) : null;
  } catch {
    return null;
  }
}

class LockPage {
  constructor(kind, encodedName, name) {
    Object.assign(this, { kind, encodedName, name });
    this.state = h("p.state", { role: "status" });
    this.holders = h("ol.people");
    this.held = h("section", { "aria-label": "Holders", hidden: true }, h("h2", {}, "Held by"), this.holders);
    this.waiters = h("ol.people.line");
    this.queue = h("h2", {}, "Queue");
    this.history = h("ol.events.short");
    this.none = h("p.help", {}, "No events since this server started.");
    this.force = h("button.danger", { type: "button", hidden: true, onclick: () => this.askForce(null) });
    const title = h("span", {}, h("span.kind", {}, kind), nameNode(name));
    this.element = h(
      "section.view.lock",
      {},
      heading(title, null, copyButton(name), this.force),
      this.state,
      this.held,
      h("section", { "aria-label": "Queue" }, this.queue, this.waiters),
      h("section", { "aria-label": "History" }, h("h2", {}, "History"), this.none, this.history),
    );
    this.drawHistory = this.drawHistory.bind(this);
    live.news.addEventListener("event", this.drawHistory);
    this.stream = api.follow(`v1/watch/locks/base64:${encodedName}?kind=${encodeURIComponent(kind)}`, {
      onEvent: (type, data) => type === "status" && this.show(statusOf(data, now())),
      onState: (word, problem) => word === "refused" && setText(this.state, problem.message),
    });
    this.drawHistory();
  }

  show(status) {
    this.status = status;
    const { holders, holding, waiting } = status;
    const mayForce = session.may("force", this.name);
    setText(this.state, summary(status));
    this.held.hidden = !holders.length;
    this.force.hidden = !holders.length || !mayForce;
    setText(this.force, holding > 1 ? "Force release of all…" : "Force release…");
    const make = (hold) => this.makeHold(status, hold, mayForce && holding > 1);
    keyed(this.holders, holders, (each) => `${each.lease} ${each.token} ${each.state}`, make, updateHold);
    keyed(this.waiters, status.waiters, (each) => each.lease, waiterLine);
    setText(this.queue, waiting ? `Queue: ${waiting.toLocaleString("en")} waiting` : "Queue: empty");
  }

  makeHold(status, hold, mayEnd) {
    const end = () => this.askForce(hold);
    const facts = h(
      "span.facts",
      {},
      fact("held for", since(hold.since, { tabindex: "0" })),
      fact("token", hold.token || "none"),
      hold.lease ? fact("lease", h("code", {}, hold.lease)) : null,
      mayEnd && hold.lease ? h("button.plain", { type: "button", onclick: end }, "End this lease…") : null,
    );
    return holdLine(status, hold, 200, facts);
  }

  drawHistory() {
    const found = live.latest().filter((event) => event.name === this.encodedName && event.kind === this.kind);
    keyed(this.history, found.slice(-HISTORY).reverse(), (event) => event, eventLine);
    this.none.hidden = found.length > 0;
  }

  askForce(hold) {
    const dialog = releaseDialog(this, hold);
    this.element.append(dialog);
    dialog.showModal();
  }

  stop() {
    this.stream.stop();
    live.news.removeEventListener("event", this.drawHistory);
  }
}

function summary({ holders, holding, capacity, lastToken }) {
  const of = capacity > 1 ? ` Its capacity is ${capacity.toLocaleString("en")} units.` : "";
  if (!holders.length) return `Free. ${lastToken ? `The last token was ${lastToken}.` : "It was never granted."}${of}`;
  const shownOnly = holding > holders.length ? ` The ${holders.length} whose leases end first are shown.` : "";
  return `Held by ${count(holding, "holder")}.${of}${shownOnly}`;
}

/** Names of any bytes are hard to type. */
function copyButton(name) {
  const copy = async () => {
    await navigator.clipboard.writeText(shown(name));
    setText(button, "Copied");
    setTimeout(() => setText(button, "Copy the name"), 1_500);
  };
  const failed = () => setText(button, "The browser did not allow copying");
  const button = h("button.plain", { type: "button", onclick: () => copy().catch(failed) }, "Copy the name");
  return button;
}

// -- force release --------------------------------------------------------------------------------

/** The dialog that ends one lease, or all if `hold` is null. It takes the name and a reason. */
function releaseDialog({ kind, encodedName, name, status }, hold) {
  const typed = textField("typed-name");
  const reason = textField("reason", "500");
  const atOnce = h("input", { type: "checkbox", id: "at-once" });
  const trouble = h("p.trouble", { role: "alert" });
  const end = h("button.danger", { type: "submit", disabled: true }, "End the lease");
  const judge = () => (end.disabled = typed.value !== shown(name) || !reason.value.trim());
  const close = () => dialog.close();
  const submit = async (event) => {
    event.preventDefault();
    if (end.disabled) return;
    end.disabled = true;
    try {
      const query = { kind, force: true, reason: reason.value.trim(), now: atOnce.checked };
      if (hold) query.lease = hold.lease;
      const answer = await api.request("DELETE", `v1/locks/base64:${encodedName}`, { query });
      content.replaceChildren(...outcome(answer, close));
      content.querySelector("button").focus();
    } catch (error) {
      setText(trouble, error.message);
      judge();
    }
  };
  const field = (input, label) => h("p", {}, h("label", { for: input.id }, label), input);
  const risk =
    " Ending a lease does not stop its program. The program gets a notification, if it can be reached." +
    " Until then it may continue to write. Only a resource that checks fencing tokens rejects its writes.";
  const freeing = "Free it at once instead of when the lease ends. Then two programs may hold it at the same time.";
  const content = h(
    "form",
    { onsubmit: submit, oninput: judge },
    h("h2", { id: "release-title" }, "Force release of ", nameNode(name, 60)),
    h("p", {}, "This ends ", ...leaseWords(status, hold), "."),
    h("p.warning", {}, h("strong", {}, "The holder may still be running."), risk),
    field(typed, ["To confirm, type the name: ", h("code.to-type", {}, nameNode(name))]),
    field(reason, "Reason, for the holder and the audit log"),
    h("p.check", {}, atOnce, h("label", { for: "at-once" }, freeing)),
    trouble,
    h("p.buttons", {}, h("button.plain", { type: "button", onclick: close }, "Cancel"), end),
  );
  const dialog = h("dialog.release", { "aria-labelledby": "release-title", onclose: () => dialog.remove() }, content);
  return dialog;
}

function textField(id, maxlength = null) {
  return h("input", { id, maxlength, autocomplete: "off", spellcheck: "false", autocapitalize: "none", required: true });
}

function leaseWords(status, hold) {
  const one = hold ?? (status.holding === 1 ? status.holders[0] : null);
  if (one) return ["the lease of ", person(one, 60), `, token ${one.token}`];
  return [`all of its ${count(status.holding, "lease")}`];
}

function outcome(answer, close) {
  const warning = `${answer.warning.charAt(0).toUpperCase()}${answer.warning.slice(1)}.`;
  return [
    h("h2", {}, answer.count === 1 ? "Revoked one lease" : `Revoked ${answer.count} leases`),
    h("p", {}, warning),
    h("p.buttons", {}, h("button.primary", { type: "button", onclick: close }, "Close")),
  ];
}
