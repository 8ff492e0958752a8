// Timeline: who held which lock when, up to now.

import { choiceField, prefixField, toLock } from "../address.js";
import { empty, errorLine, h, heading, keyed, s, setAttribute, setText } from "../dom.js";
import * as live from "../live.js";
import { decoded, nameNode, shown } from "../names.js";
import { concerning, scanning } from "../status.js";
import { clockTime, isPaused, now, span } from "../time.js";

const MOST_LANES = 60;
const MOST_HELD = 200; // keys that are asked for what they hold now
const MOST_SLOTS = 10; // lanes of one semaphore, if there are others
const ROW = 28;
const AXIS = 22;
const TICK = 70; // pixels between two times on the axis
const LETTER = 6.8; // pixels
const SHORTEST = 20; // seconds that are shown at least
const LONGEST = 900; // seconds that are shown at most, unless the user chooses a longer period
const SPANS = [
  ["", "all recent"],
  ["60", "1 minute"],
  ["300", "5 minutes"],
  ["900", "15 minutes"],
  ["3600", "1 hour"],
  ["21600", "6 hours"],
];
const STEPS = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
const ENDINGS = { released: "released", expired: "expired", freed: "force-released" };

export function timelineView(_, params) {
  return new Timeline(params.get("prefix") ?? "", params.get("span") ?? "");
}

class Timeline {
  constructor(prefix, chosen) {
    this.prefix = prefix;
    this.span = Number(chosen) || 0;
    this.held = [];
    this.trouble = errorLine();
    this.total = h("span.total", { role: "status" });
    const text = "New holds appear here. Choose a longer period to see older ones.";
    this.nothing = h("div", { hidden: true }, empty("No holds in this period", text, "dibs run jobs/first -- sleep 10"));
    this.labels = h("ol.lane-names");
    this.blocks = s("g");
    this.axis = s("g.axis");
    const label = "Timeline of holds; each lock’s page has the same as text";
    this.drawing = s("svg.lanes", { role: "img", "aria-label": label }, hatch(), this.axis, this.blocks);
    this.chart = h("div.timeline", {}, this.labels, h("div.drawing", {}, this.drawing));
    const onPrefix = (value) => {
      this.prefix = value;
      this.loop.again();
    };
    const onSpan = (value) => {
      this.span = Number(value);
      this.draw();
    };
    const spans = choiceField("The last", "span", SPANS, this.span ? String(this.span) : "", onSpan);
    const top = heading("Timeline", this.total, prefixField(prefix, onPrefix), spans);
    this.element = h("section.view", {}, top, legend(), this.trouble.element, this.nothing, this.chart);
    this.draw = this.draw.bind(this);
    live.news.addEventListener("event", this.draw);
    this.watcher = new ResizeObserver(this.draw);
    this.watcher.observe(this.drawing.parentElement);
    this.timer = setInterval(() => document.hidden || isPaused() || this.draw(), 1_000);
    const concerns = (event) => concerning("", this.prefix)(event);
    this.loop = live.looking(() => this.look(), { every: 5, failed: this.trouble.show, concerns });
  }

  async look() {
    const { items } = await scanning("", this.prefix)(null, MOST_HELD);
    this.held = items;
    this.trouble.clear();
    this.isLoaded = true;
    this.draw();
  }

  draw() {
    const until = now();
    const all = lanes(this.held, live.latest().filter(concerning("", this.prefix)));
    const from = until - (this.span || recent(all, until));
    const seen = all.filter((lane) => lane.latest >= from);
    const some = fair(seen).slice(0, MOST_LANES).sort((a, b) => (a.id < b.id ? -1 : 1));
    this.nothing.hidden = some.length > 0 || !this.isLoaded;
    this.chart.hidden = some.length === 0;
    const isPart = seen.length > some.length;
    const words = `${some.length} of ${seen.length.toLocaleString("en")} lanes; filter by prefix to see others`;
    setText(this.total, isPart ? words : "");
    keyed(this.labels, some, (lane) => lane.id, label);
    this.drawLanes(some, from, until);
  }

  drawLanes(some, from, until) {
    const width = Math.max(this.drawing.parentElement.clientWidth, 120);
    const height = some.length * ROW + AXIS;
    setAttribute(this.drawing, "width", width);
    setAttribute(this.drawing, "height", height);
    const scale = (at) => Math.round(((at - from) / (until - from)) * (width - 2) * 10) / 10;
    const blocks = some.flatMap((lane, row) => visible(lane, row, from, until, scale));
    keyed(this.blocks, blocks, ({ id }) => id, makeBlock, updateBlock);
    this.axis.replaceChildren(...axis(from, until, scale, height));
  }

  stop() {
    this.loop.stop();
    clearInterval(this.timer);
    this.watcher.disconnect();
    live.news.removeEventListener("event", this.draw);
  }
}

/** How many seconds to show: since the first hold that is known, within bounds. */
function recent(all, until) {
  const first = Math.min(until, ...all.map((lane) => lane.first));
  return Math.min(Math.max(until - first, SHORTEST), LONGEST);
}

/** A lane's blocks. Of blocks that share a pixel only the first is drawn, unless one did not end well. */
function visible(lane, row, from, until, scale) {
  const found = [];
  let last = -1;
  for (const [id, block] of lane.blocks) {
    const end = block.end ?? until;
    if (end < from || (scale(end) - last < 1 && block.how === "released")) continue;
    last = scale(end);
    found.push({ id: `${lane.id} ${id}`, row, block, from: scale(Math.max(block.start, from)), to: last });
  }
  return found;
}

/** At most so many slots of one semaphore, unless there is nothing else. */
function fair(all) {
  const counts = new Map();
  const some = all.filter(({ kind, name }) => {
    const key = `${kind}:${name}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
    return counts.get(key) <= MOST_SLOTS;
  });
  return counts.size > 1 ? some : all;
}

function label({ kind, name, slot }) {
  const number = slot === null ? null : h("span.slot", {}, `slot ${slot}`);
  const link = { href: toLock(kind, name), title: `${kind} ${shown(decoded(name))}` };
  return h("li", {}, h("a", link, nameNode(decoded(name), 60)), number);
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
    setAttribute(rect, "x", from);
    setAttribute(rect, "y", AXIS + row * ROW + 4);
    setAttribute(rect, "width", width);
  }
  setAttribute(group, "data-how", block.end === null ? "held" : block.how);
  setAttribute(group.text, "x", from + 5);
  setAttribute(group.text, "y", AXIS + row * ROW + ROW / 2);
  setText(group.text, blockLabel(block, width));
  setText(group.title, blockTitle(block));
}

/** The holder's name, or its end if there is no room for more. */
function blockLabel({ owner }, width) {
  const letters = Math.floor((width - 8) / LETTER);
  const text = shown(owner);
  if (letters >= text.length) return text;
  return letters >= 4 ? `…${text.slice(1 - letters)}` : "";
}

function blockTitle({ owner, token, start, end, how }) {
  const until = end === null ? "held now" : `${ENDINGS[how] ?? how} at ${clockTime(end)}`;
  return `${shown(owner)}, token ${token}: from ${clockTime(start)} for ${span((end ?? now()) - start)}, ${until}`;
}

function axis(from, until, scale, height) {
  const every = STEPS.find((each) => scale(from + each) >= TICK) ?? 7200;
  const parts = [];
  for (let at = Math.ceil(from / every) * every; at < until; at += every) {
    const x = scale(at);
    parts.push(s("line", { x1: x, x2: x, y1: AXIS, y2: height }));
    const text = every < 60 ? clockTime(at) : clockTime(at).slice(0, 5);
    if (x > 24 && scale(until) - x > 24) parts.push(s("text", { x, y: 14, "text-anchor": "middle" }, text));
  }
  return parts;
}

function hatch() {
  const size = { width: 7, height: 7 };
  const shape = { id: "hatch", ...size, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  return s("defs", {}, s("pattern", shape, s("rect.stripe", { ...size, width: 2.5 })));
}

function legend() {
  const each = ([how, words]) => h("li", {}, h("span.sample", { "data-how": how, "aria-hidden": "true" }), words);
  return h("ul.legend", { "aria-label": "Key" }, ...Object.entries({ held: "held now", ...ENDINGS }).map(each));
}

// -- lanes ----------------------------------------------------------------------------------------

/**
 * Return a lane for each lock, or for each slot of one, the one with the latest hold first. A lane has `blocks`
 * `{ start, end, token, owner, how }`: `end` is null while it is held, `how` is what ended it.
 */
export function lanes(statuses, events) {
  const found = new Map();
  for (const event of events) addEvent(found, event);
  for (const status of statuses) for (const hold of status.holders) if (hold.lease) addHold(found, status, hold);
  const all = [...found.values()].filter((lane) => lane.blocks.size);
  for (const lane of all) {
    const blocks = [...lane.blocks.values()];
    lane.first = Math.min(...blocks.map((block) => block.start));
    lane.latest = Math.max(...blocks.map((block) => block.end ?? Infinity));
  }
  return all.sort((a, b) => b.latest - a.latest || (a.id < b.id ? -1 : 1));
}

function addEvent(found, event) {
  const isEnd = event.what in ENDINGS;
  if (event.what !== "granted" && !isEnd) return;
  for (const slot of slotsOf(event)) {
    const { blocks } = laneOf(found, event, slot);
    const id = `${event.lease} ${event.token}`;
    // the grant of what has ended may be older than the first event
    const block = blocks.get(id) ?? blockOf(event, event.at - (event.held_for ?? 0));
    if (isEnd) Object.assign(block, { end: event.at, how: event.what });
    blocks.set(id, block);
  }
}

function addHold(found, { kind, encodedName }, hold) {
  for (const slot of slotsOf({ kind, slots: hold.slots })) {
    const { blocks } = laneOf(found, { kind, name: encodedName }, slot);
    const id = `${hold.lease} ${hold.token}`;
    if (!blocks.has(id)) blocks.set(id, blockOf(hold, hold.since));
  }
}

/** Events of more units have no slot numbers: `MAX_SLOTS` in key_state.py. */
function slotsOf({ kind, slots }) {
  return kind === "semaphore" && slots.length && slots.length <= 16 ? slots : [null];
}

function laneOf(found, { kind, name }, slot) {
  const id = `${kind}:${name}:${slot === null ? "" : String(slot).padStart(9, "0")}`;
  if (!found.has(id)) found.set(id, { id, kind, name, slot, blocks: new Map() });
  return found.get(id);
}

function blockOf({ token, owner }, start) {
  return { start, end: null, token, owner, how: "" };
}
