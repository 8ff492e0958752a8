// Who has signed in, and what that key is good for.

import * as api from "./api.js";
import { decoded } from "./names.js";

let who = null;

/** Who it is, or null. */
export function current() {
  return who;
}

/** Ask whether there is a session. */
export async function resume() {
  try {
    return adopt(await api.get("ui/session", undefined, { quiet: true }));
  } catch (problem) {
    if (problem.status === 401) return null;
    throw problem;
  }
}

/** Begin one, by an API key or by a ticket; neither is kept. */
export async function signIn(given) {
  return adopt(await api.ask("POST", "ui/session", { body: given, quiet: true }));
}

/** End it. */
export async function signOut() {
  await api.ask("DELETE", "ui/session");
  forget();
}

/** It has ended. */
export function forget() {
  who = null;
  api.setToken("");
}

/** Whether it may do something to a name, as far as can be told here: the service has the last word. */
export function may(scope, name) {
  if (!who || !(who.scopes.includes(scope) || who.scopes.includes("admin"))) return false;
  return who.prefixes.some((prefix) => begins(name, decoded(prefix)));
}

function begins(name, prefix) {
  return prefix.every((byte, at) => name[at] === byte);
}

function adopt(told) {
  who = told;
  api.setToken(told.csrf);
  return who;
}
