// Force release: nobody ends another's lease by one click.

import * as api from "./api.js";
import { h, say } from "./dom.js";
import { nameNode, shown } from "./names.js";
import { count, person } from "./people.js";

/** The dialog; `hold` is the one to be ended, or null for all. */
export function releaseDialog({ kind, spelt, name, status, hold }) {
  const wanted = shown(name);
  const typed = h("input", { id: "typed-name", autocomplete: "off", spellcheck: "false", autocapitalize: "none", required: true });
  const reason = h("input", { id: "reason", maxlength: "500", autocomplete: "off", required: true });
  const now = h("input", { type: "checkbox", id: "at-once" });
  const told = h("p.trouble", { role: "alert" });
  const go = h("button.danger", { type: "submit", disabled: true }, "End the lease");
  const judge = () => (go.disabled = typed.value !== wanted || !reason.value.trim());
  const close = () => dialog.close();
  const submit = async (event) => {
    event.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    try {
      const query = { kind, force: true, reason: reason.value.trim(), now: now.checked };
      if (hold) query.lease = hold.lease;
      const done = await api.ask("DELETE", `v1/locks/base64:${spelt}`, { query });
      content.replaceChildren(...outcome(done, close));
      content.querySelector("button").focus();
    } catch (error) {
      say(told, error.message);
      judge();
    }
  };
  const field = (input, label, ...help) => h("p", {}, h("label", { for: input.id }, label), input, ...help);
  const content = h(
    "form",
    { onsubmit: submit, oninput: judge },
    h("h2", { id: "release-title" }, "Force release of ", nameNode(name, 60)),
    h("p", {}, "This ends ", ...whom(status, hold), "."),
    h("p.warning", {}, h("strong", {}, "The holder may still be running."), " Ending a lease does not stop its program. The program gets a notification, if it can be reached. Until then it may continue to write. Only a resource that checks fencing tokens rejects its writes."),
    field(typed, ["To confirm, type the name: ", h("code.to-type", {}, nameNode(name))]),
    field(reason, "Reason, for the holder and the audit log"),
    h("p.check", {}, now, h("label", { for: "at-once" }, "Free it at once instead of when the lease ends. Then two programs may hold it at the same time.")),
    told,
    h("p.buttons", {}, h("button.plain", { type: "button", onclick: close }, "Cancel"), go),
  );
  const dialog = h("dialog.release", { "aria-labelledby": "release-title", onclose: () => dialog.remove() }, content);
  return dialog;
}

function whom(status, hold) {
  if (hold) return ["the lease of ", person(hold, 60), `, token ${hold.token}`];
  if (status.holding === 1) return ["the lease of ", person(status.holders[0], 60), `, token ${status.holders[0].token}`];
  return [`all of its ${count(status.holding, "lease")}`];
}

function outcome(done, close) {
  return [
    h("h2", {}, done.count === 1 ? "Revoked one lease" : `Revoked ${done.count} leases`),
    h("p", {}, sentence(done.warning)),
    h("p.buttons", {}, h("button.primary", { type: "button", onclick: close }, "Close")),
  ];
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
