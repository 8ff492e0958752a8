// Timeline: who held which lock when, up to this moment.

import { isPaused, now } from "../clock.js";
import { h, keyed, mark, s, say } from "../dom.js";
import { empty, trouble } from "../empty.js";
import { choiceField, prefixField } from "../filter.js";
import { lanes } from "../lanes.js";
import * as live from "../live.js";
import { looking } from "../loop.js";
import { decoded, nameNode, shown } from "../names.js";
import { toLock } from "../route.js";
import { concerning, scanning } from "../scan.js";
import { clockTime, span } from "../times.js";

const MOST = 60;
const HELD = 200;
const SPACE = 70;
const SLOTS = 10;
const LETTER = 6.8;
const FEWEST = 4;
const ROW = 28;
const AXIS = 22;
const SPANS = [
  ["60", "1 minute"],
  ["300", "5 minutes"],
  ["900", "15 minutes"],
  ["3600", "1 hour"],
  ["21600", "6 hours"],
];
const ENDINGS = { released: "released", expired: "expired", freed: "force-released" };

export function timelineView(_, params) {
  const view = new Timeline(params.get("prefix") ?? "", params.get("span") ?? "300");
  return { element: view.element, stop: () => view.stop() };
}

class Timeline {
  constructor(prefix, chosen) {
    this.prefix = prefix;
    this.span = Number(chosen) || 300;
    this.held = [];
    this.told = trouble();
    this.total = h("span.total", { role: "status" });
    this.nothing = h("div", { hidden: true }, empty("No holds in this period", "New holds appear here. Choose a longer period to see older ones.", "dibs run jobs/first -- sleep 10"));
    this.labels = h("ol.lane-names");
    this.blocks = s("g");
    this.axis = s("g.axis");
    this.edge = s("line.edge");
    this.drawing = s("svg.lanes", { role: "img", "aria-label": "Timeline of holds; each lock’s page has the same as text" }, hatch(), this.axis, this.blocks, this.edge);
    this.chart = h("div.timeline", {}, this.labels, h("div.drawing", {}, this.drawing));
    const fields = h(
      "div.fields",
      {},
      prefixField(prefix, (value) => ((this.prefix = value), this.loop.poke())),
      choiceField("The last", "span", SPANS, String(this.span), (value) => ((this.span = Number(value)), this.draw())),
    );
    this.element = h("section.view", {}, h("header.title", {}, h("h1", {}, "Timeline"), this.total, fields), legend(), this.told.element, this.nothing, this.chart);
    this.onNews = () => this.draw();
    live.news.addEventListener("event", this.onNews);
    this.watcher = new ResizeObserver(this.onNews);
    this.watcher.observe(this.drawing.parentElement);
    this.timer = setInterval(() => document.hidden || isPaused() || this.draw(), 1_000);
    this.loop = looking(() => this.look(), { every: 5, failed: this.told.tell, concerns: (event) => concerning("", this.prefix)(event) });
  }

  async look() {
    const { items } = await scanning("", this.prefix)(null, HELD);
    this.held = items;
    this.told.clear();
    this.looked = true;
    this.draw();
  }

  draw() {
    const until = now();
    const from = until - this.span;
    const concerns = concerning("", this.prefix);
    const all = lanes(this.held, live.latest().filter(concerns));
    const seen = all.filter((lane) => lane.latest >= from);
    const some = fair(seen).slice(0, MOST).sort((a, b) => (a.id < b.id ? -1 : 1));
    this.nothing.hidden = some.length > 0 || !this.looked;
    this.chart.hidden = some.length === 0;
    say(this.total, seen.length > some.length ? `${some.length} of ${seen.length.toLocaleString("en")} lanes; filter by prefix to see others` : "");
    keyed(this.labels, some, (lane) => lane.id, label);
    this.drawLanes(some, from, until);
  }

  drawLanes(some, from, until) {
    const width = Math.max(this.drawing.parentElement.clientWidth, 120);
    const height = some.length * ROW + AXIS;
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) mark(this.drawing, name, value);
    const scale = (at) => Math.round(((at - from) / (until - from)) * (width - 2) * 10) / 10;
    const blocks = some.flatMap((lane, row) => visible(lane, row, from, until, scale));
    keyed(this.blocks, blocks, ({ id }) => id, makeBlock, updateBlock);
    this.axis.replaceChildren(...axis(from, until, scale, height));
    for (const [name, value] of Object.entries({ x1: width - 2, x2: width - 2, y1: AXIS, y2: height })) mark(this.edge, name, value);
  }

  stop() {
    this.loop.stop();
    clearInterval(this.timer);
    this.watcher.disconnect();
    live.news.removeEventListener("event", this.onNews);
  }
}

/** A lane's blocks in their order; of those that share a pixel one is enough, unless it did not end well. */
function visible(lane, row, from, until, scale) {
  const found = [];
  let last = -1;
  for (const [id, block] of lane.blocks) {
    const end = scale(block.end ?? until);
    if ((block.end ?? until) < from || (end - last < 1 && block.how === "released")) continue;
    found.push({ id: `${lane.id} ${id}`, row, block, from: scale(Math.max(block.start, from)), to: end });
    last = end;
  }
  return found;
}

/** So many slots of one pool at most, unless there is nothing else. */
function fair(all) {
  const counts = new Map();
  const some = all.filter(({ kind, name }) => {
    const key = `${kind}:${name}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
    return counts.get(key) <= SLOTS;
  });
  return counts.size > 1 ? some : all;
}

function label(lane) {
  const name = decoded(lane.name);
  const slot = lane.slot === null ? null : h("span.slot", {}, `slot ${lane.slot}`);
  return h("li", {}, h("a", { href: toLock(lane.kind, lane.name), title: `${lane.kind} ${shown(name)}` }, nameNode(name, 28)), slot);
}

function makeBlock() {
  const group = s("g.block");
  group.body = s("rect.body", { rx: 3, height: ROW - 8 });
  group.stripes = s("rect.stripes", { rx: 3, height: ROW - 8, fill: "url(#hatch)" });
  group.text = s("text", { "dominant-baseline": "central" });
  group.title = s("title");
  group.append(group.body, group.stripes, group.text, group.title);
  return group;
}

function updateBlock(group, { block, row, from, to }) {
  const width = Math.max(to - from, 2);
  for (const rect of [group.body, group.stripes]) {
    mark(rect, "x", from);
    mark(rect, "y", AXIS + row * ROW + 4);
    mark(rect, "width", width);
  }
  mark(group, "data-how", block.end === null ? "held" : block.how);
  const text = labelOf(block, width);
  mark(group.text, "x", from + 5);
  mark(group.text, "y", AXIS + row * ROW + ROW / 2);
  say(group.text, text);
  say(group.title, words(block));
}

/** As much of the holder's name as there is room for: its end. */
function labelOf({ owner }, width) {
  const letters = Math.floor((width - 8) / LETTER);
  const text = shown(owner);
  if (letters >= text.length) return text;
  return letters >= FEWEST ? `…${text.slice(1 - letters)}` : "";
}

function words({ owner, token, start, end, how }) {
  const until = end === null ? "held now" : `${ENDINGS[how] ?? how} at ${clockTime(end)}`;
  return `${shown(owner)}, token ${token}: from ${clockTime(start)} for ${span((end ?? now()) - start)}, ${until}`;
}

function axis(from, until, scale, height) {
  const every = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600].find((each) => scale(from + each) >= SPACE) ?? 7200;
  const parts = [];
  for (let at = Math.ceil(from / every) * every; at < until; at += every) {
    const x = scale(at);
    parts.push(s("line", { x1: x, x2: x, y1: AXIS, y2: height }));
    if (x > 24 && scale(until) - x > 24) parts.push(s("text", { x, y: 14, "text-anchor": "middle" }, every < 60 ? clockTime(at) : clockTime(at).slice(0, 5)));
  }
  return parts;
}

function hatch() {
  const pattern = s("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect.ground", { width: 7, height: 7 }), s("rect.stripe", { width: 2.5, height: 7 }));
  return s("defs", {}, pattern);
}

function legend() {
  const each = (how, words) => h("li", {}, h("span.sample", { "data-how": how, "aria-hidden": "true" }), words);
  return h("ul.legend", { "aria-label": "Key" }, each("held", "held now"), each("released", "released"), each("expired", "expired"), each("freed", "force-released"));
}
