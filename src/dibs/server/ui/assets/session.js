// The signed-in API key, and the form that signs in. The key is sent once and not stored.

import * as api from "./api.js";
import { h, setText } from "./dom.js";
import { decoded } from "./names.js";

let session = null;

/** Return the session, or null. */
export function current() {
  return session;
}

/** Ask the service whether the browser has a session. */
export async function resume() {
  try {
    return adopt(await api.get("ui/session", undefined, { quiet: true }));
  } catch (problem) {
    if (problem.status === 401) return null;
    throw problem;
  }
}

/** Start a session by `{ key }` or `{ ticket }`. */
export async function signIn(body) {
  return adopt(await api.request("POST", "ui/session", { body, quiet: true }));
}

/** End it at the service. */
export async function signOut() {
  await api.request("DELETE", "ui/session");
  forget();
}

/** Forget it. */
export function forget() {
  session = null;
  api.setToken("");
}

/** Whether the key has a scope for a name. The service decides in any case. */
export function may(scope, name) {
  if (!session || !(session.scopes.includes(scope) || session.scopes.includes("admin"))) return false;
  return session.prefixes.some((prefix) => decoded(prefix).every((byte, at) => name[at] === byte));
}

function adopt(found) {
  session = found;
  api.setToken(found.csrf);
  return session;
}

/** The sign-in form. It calls `entered` once there is a session; `why` explains why there is none. */
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
  const trouble = h("p.trouble", { id: "key-trouble", role: "alert" }, why);
  const button = h("button.primary", { type: "submit" }, "Sign in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    setText(trouble, "");
    try {
      await signIn({ key: key.value.trim() });
      key.value = "";
      entered();
    } catch (error) {
      setText(trouble, error.status === 401 ? "This API key is wrong, expired or revoked." : error.message);
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
    trouble,
    button,
    h(
      "details",
      {},
      h("summary", {}, "No key yet?"),
      h("p", {}, "The first start of the service prints an administrator API key, once. An administrator creates others:"),
      h("pre", {}, h("code", {}, "dibs keys create --name me --scope read")),
    ),
  );
  return h("main.threshold", { id: "main", tabindex: "-1" }, form);
}
