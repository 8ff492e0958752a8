// The sign-in form. The API key is sent once and not stored.

import { h, say } from "./dom.js";
import * as session from "./session.js";

/** The form. `entered` is called once there is a session; `why` says why there is none. */
export function signInForm(entered, why = "") {
  const key = h("input", {
    id: "key",
    name: "key",
    type: "password",
    autocomplete: "current-password",
    spellcheck: "false",
    autocapitalize: "none",
    required: true,
    "aria-describedby": "key-help key-trouble",
  });
  const told = h("p.trouble", { id: "key-trouble", role: "alert" }, why);
  const button = h("button.primary", { type: "submit" }, "Sign in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    say(told, "");
    try {
      await session.signIn({ key: key.value.trim() });
      key.value = "";
      entered();
    } catch (error) {
      say(told, reason(error));
      button.disabled = false;
      key.select();
    }
  };
  const form = h(
    "form.door",
    { onsubmit: submit },
    h("h1", {}, h("img", { src: "ui/favicon.svg", alt: "", width: "28", height: "28" }), "Dibs"),
    h("label", { for: "key" }, "API key"),
    key,
    h("p.help", { id: "key-help" }, "It begins with dibs_. This page does not store it. The session lasts 12 hours, or until the key is revoked."),
    told,
    button,
    h("details", {}, h("summary", {}, "No key yet?"), h("p", {}, "The first start of the service prints an administrator API key, once. An administrator creates others:"), h("pre", {}, h("code", {}, "dibs keys create --name me --scope read"))),
  );
  return h("main.threshold", { id: "main", tabindex: "-1" }, form);
}

function reason(error) {
  if (error.status === 401) return "This API key is wrong, expired or revoked.";
  return error.message;
}
