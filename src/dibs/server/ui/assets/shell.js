// The frame around each view: navigation, the signed-in key, and the state of the connection.

import { h, mark, say } from "./dom.js";
import * as live from "./live.js";
import { here, to } from "./route.js";
import { exact } from "./times.js";

/** Views that have an entry of their own. */
const PLACES = [
  ["now", "Now"],
  ["queues", "Queues"],
  ["pools", "Pools"],
  ["leaders", "Leaders"],
  ["timeline", "Timeline"],
  ["events", "Events"],
  ["audit", "Audit"],
];

/** The frame; views go into its `main`. `leave` signs out, `stop` ends the frame. */
export function shell(who, leave) {
  const places = PLACES.filter(([place]) => place !== "audit" || who.admin);
  const links = places.map(([place, title]) => h("a", { href: to([place]), "data-place": place }, title));
  const nav = h("nav.places", { "aria-label": "Views" }, ...links);
  const [connection, alarm] = [connectionMark(), banner()];
  const header = h(
    "header.top",
    {},
    h("a.brand", { href: to(["now"]) }, h("img", { src: "ui/favicon.svg", alt: "", width: "22", height: "22" }), "Dibs"),
    connection,
    h("span.who", { title: `Signed in with the key “${who.name}”` }, h("bdi", {}, who.name)),
    h("button.plain", { type: "button", onclick: leave }, "Sign out"),
  );
  const main = h("main", { id: "main", tabindex: "-1" });
  const element = h("div.shell", {}, header, nav, alarm, main);
  const tell = () => (connection.tell(), alarm.tell());
  live.news.addEventListener("state", tell);
  tell();
  const stop = () => live.news.removeEventListener("state", tell);
  return { element, main, stop, choose: () => choose(links) };
}

function choose(links) {
  const [place = "now"] = here().path;
  const within = place === "lock" ? "now" : place;
  for (const link of links) mark(link, "aria-current", link.dataset.place === within ? "page" : null);
  const current = links.find((link) => link.dataset.place === within);
  const title = place === "lock" ? "Lock" : current?.textContent;
  document.title = title ? `${title} · Dibs` : "Dibs";
  current?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function connectionMark() {
  const word = h("span.word");
  const element = h("span.connection", { role: "status" }, h("span.dot", { "aria-hidden": "true" }), word);
  element.tell = () => say(word, live.connection().state);
  return element;
}

/** A page that hears nothing says so, and since when. */
function banner() {
  const element = h("p.banner", { role: "alert", hidden: true });
  element.tell = () => {
    const { state, since, why } = live.connection();
    element.hidden = state !== "reconnecting";
    say(element, element.hidden ? "" : `${why ? `The service reports: ${why}.` : "The service does not answer."} This page shows the state of ${exact(since)}. Reconnecting.`);
  };
  return element;
}
