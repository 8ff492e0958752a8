// The page: sign in, then the view that the URL names.

import { here, takeTicket } from "./address.js";
import * as api from "./api.js";
import { h } from "./dom.js";
import { stopBars } from "./holders.js";
import * as live from "./live.js";
import * as session from "./session.js";
import { shell } from "./shell.js";
import { auditView } from "./views/audit.js";
import { leadersView, poolsView, queuesView } from "./views/cards.js";
import { eventsView } from "./views/events.js";
import { lockView } from "./views/lock.js";
import { nowView } from "./views/now.js";
import { timelineView } from "./views/timeline.js";

/** Each makes `{ element, stop }` of the rest of the path and the parameters. */
const VIEWS = {
  now: nowView,
  queues: queuesView,
  pools: poolsView,
  leaders: leadersView,
  timeline: timelineView,
  events: eventsView,
  audit: auditView,
  lock: lockView,
};

const app = document.getElementById("app");
let frame = null;
let view = null;

/** A ticket is removed from the URL when it is read, so a retry gets it as an argument. */
async function begin(ticket = takeTicket()) {
  try {
    if (ticket) await session.signIn({ ticket });
    else await session.resume();
    if (session.current()) enter();
    else askForKey();
  } catch (error) {
    const isSpent = ticket && error.status === 401;
    if (api.isTemporary(error)) retry(ticket, error);
    else askForKey(isSpent ? "This sign-in link was used already, or is too old. Sign in with an API key." : error.message);
  }
}

function retry(ticket, { message }) {
  const why = `${message[0].toUpperCase()}${message.slice(1)}; trying again.`;
  app.replaceChildren(h("main.threshold", { id: "main" }, h("p", { role: "status" }, why)));
  setTimeout(begin, 2_000, ticket);
}

function enter() {
  closeAll();
  frame = shell(session.current(), leave);
  app.replaceChildren(frame.element);
  live.start(refused);
  show();
  frame.main.focus();
}

function askForKey(why = "") {
  closeAll();
  live.stop();
  session.forget();
  document.title = "Sign in · Dibs";
  document.documentElement.dataset.connection = "signed-out";
  app.replaceChildren(session.signInForm(enter, why));
  document.getElementById("key").focus();
}

async function leave() {
  try {
    await session.signOut();
    askForKey("You are signed out.");
  } catch (error) {
    if (error.status !== 401) announce(`Not signed out: ${error.message}`);
  }
}

function refused(problem) {
  if (problem.status === 401) signedOut();
  else announce(problem.message);
}

function signedOut() {
  if (session.current()) askForKey("Your session has ended. Sign in again.");
}

/** Have a screen reader read a text that is not shown. */
function announce(text) {
  document.getElementById("announced").textContent = text;
}

function close() {
  view?.stop();
  view = null;
}

function closeAll() {
  close();
  frame?.stop();
  frame = null;
}

function show() {
  if (!session.current()) return;
  close();
  const { path, params } = here();
  const [place = "now", ...rest] = path;
  view = (Object.hasOwn(VIEWS, place) ? VIEWS[place] : nowView)(rest, params);
  const hadFocus = frame.main.contains(document.activeElement);
  frame.main.replaceChildren(view.element);
  if (hadFocus) frame.main.focus();
  frame.main.scrollTop = 0;
  frame.choose();
}

api.listen({ away: () => live.reachable(false), back: () => live.reachable(true), signedOut });
live.news.addEventListener("state", () => live.connection().state === "reconnecting" && stopBars());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part after the # names the view
  document.getElementById("main").focus();
});
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#ticket=")) begin();
  else show();
});
begin();
