// The frame around each view: navigation, the signed-in key, and the state of the connection.

import { here, to } from "./address.js";
import { h, setAttribute, setText } from "./dom.js";
import * as live from "./live.js";
import { exact } from "./time.js";

const PLACES = [
  ["now", "Now"],
  ["queues", "Queues"],
  ["pools", "Pools"],
  ["leaders", "Leaders"],
  ["timeline", "Timeline"],
  ["events", "Events"],
  ["audit", "Audit"],
];

/** The frame. Views go into its `main`. `leave` signs out, `choose` marks the current view, `stop` ends it. */
export function shell(session, leave) {
  const places = PLACES.filter(([place]) => place !== "audit" || session.admin);
  const links = places.map(([place, title]) => h("a", { href: to([place]), "data-place": place }, title));
  const word = h("span");
  const banner = h("p.banner", { role: "alert", hidden: true });
  const header = h(
    "header.top",
    {},
    h("a.brand", { href: to(["now"]) }, h("img", { src: "ui/favicon.svg", alt: "", width: "22", height: "22" }), "Dibs"),
    h("span.connection", { role: "status" }, h("span.dot", { "aria-hidden": "true" }), word),
    h("span.who", { title: `Signed in with the key “${session.name}”` }, h("bdi", {}, session.name)),
    h("button.plain", { type: "button", onclick: leave }, "Sign out"),
  );
  const main = h("main", { id: "main", tabindex: "-1" });
  const nav = h("nav.places", { "aria-label": "Views" }, ...links);
  const update = () => {
    const connection = live.connection();
    setText(word, connection.state);
    banner.hidden = connection.state !== "reconnecting";
    setText(banner, banner.hidden ? "" : trouble(connection));
  };
  live.news.addEventListener("state", update);
  update();
  const stop = () => live.news.removeEventListener("state", update);
  return { element: h("div.shell", {}, header, nav, banner, main), main, stop, choose: () => choose(links) };
}

function trouble({ since, why }) {
  const what = why ? `The service reports: ${why}.` : "The service does not answer.";
  return `${what} This page shows the state of ${exact(since)}. Reconnecting.`;
}

function choose(links) {
  const [place = "now"] = here().path;
  const entry = place === "lock" ? "now" : place;
  for (const link of links) setAttribute(link, "aria-current", link.dataset.place === entry ? "page" : null);
  const current = links.find((link) => link.dataset.place === entry);
  const title = place === "lock" ? "Lock" : current?.textContent;
  document.title = title ? `${title} · Dibs` : "Dibs";
  current?.scrollIntoView({ block: "nearest", inline: "nearest" });
}
