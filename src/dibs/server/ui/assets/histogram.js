// Durations as bars, in steps that double; the ttl, where it is known, is a line across them.

import { h, mark, s, say } from "./dom.js";
import { fine } from "./times.js";

const [WIDTH, HEIGHT, FOOT, TOP] = [320, 112, 18, 16];
const FEWEST = 8;
const TICKS = [
  [0.001, "1 ms"],
  [0.01, "10 ms"],
  [0.1, "0.1 s"],
  [1, "1 s"],
  [10, "10 s"],
  [60, "1 min"],
  [600, "10 min"],
  [3600, "1 h"],
  [36_000, "10 h"],
  [86_400, "1 d"],
];

/** A chart with a title; `bounds` are where the steps end. `show(durations, ttl)` draws it. */
export function histogram(title, bounds) {
  const caption = h("figcaption");
  const drawing = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const element = h("figure.histogram", {}, caption, drawing);
  let before = "";
  return {
    element,
    show(durations, ttl = null) {
      const now = JSON.stringify([durations, ttl]);
      if (now === before) return;
      before = now;
      const words = summary(title, durations, ttl);
      say(caption, words);
      drawing.setAttribute("aria-label", words);
      mark(drawing, "hidden", !durations.longest && "");
      drawing.replaceChildren(...(durations.longest ? drawn(durations, ttl, bounds) : []));
    },
  };
}

function summary(title, { count, p50, p99, longest }, ttl) {
  if (!count) return `${title}: not yet`;
  if (!longest) return `${title}: never, ${count.toLocaleString("en")} had it at once`;
  const line = ttl ? `, ttl ${fine(ttl)}` : "";
  return `${title} ${count.toLocaleString("en")}×: p50 ${fine(p50)}, p99 ${fine(p99)}, longest ${fine(longest)}${line}`;
}

function drawn({ counts }, ttl, bounds) {
  const [from, to] = range(counts, ttl, bounds);
  const step = WIDTH / (to - from);
  const highest = Math.max(...counts);
  const room = HEIGHT - FOOT - TOP;
  const parts = [];
  for (let at = from; at < to; at++) {
    if (!counts[at]) continue;
    const height = Math.max(2, (counts[at] / highest) * room);
    const bar = s("rect.column", { x: (at - from) * step + 1, y: HEIGHT - FOOT - height, width: Math.max(step - 2, 1), height, rx: 1.5 });
    const least = at ? fine(bounds[at - 1]) : "0";
    bar.append(s("title", {}, `${counts[at].toLocaleString("en")} took ${least} to ${at < bounds.length ? fine(bounds[at]) : "longer"}`));
    parts.push(bar);
  }
  parts.push(s("line.axis", { x1: 0, x2: WIDTH, y1: HEIGHT - FOOT, y2: HEIGHT - FOOT }));
  parts.push(...ticks(from, to, step, bounds));
  if (ttl) parts.push(...line((place(ttl, bounds) - from) * step));
  return parts;
}

/** The steps that are shown: those with something in them, and the ttl's. */
function range(counts, ttl, bounds) {
  const used = counts.flatMap((each, at) => (each ? [at] : []));
  if (ttl) used.push(Math.floor(place(ttl, bounds)));
  let [from, to] = [Math.min(...used) - 1, Math.max(...used) + 2];
  while (to - from < FEWEST) [from, to] = [from - 1, to + 1];
  return [Math.max(from, 0), Math.min(to, counts.length)];
}

/** Where a duration lies among the steps, as a fraction of them. */
function place(seconds, bounds) {
  return Math.max(0, Math.log2(seconds / bounds[0]) + 1);
}

function ticks(from, to, step, bounds) {
  const found = [];
  let free = 0;
  for (const [seconds, words] of TICKS) {
    const x = (place(seconds, bounds) - from) * step;
    if (x < 14 || x > Math.min(WIDTH - 18, (to - from) * step)) continue;
    found.push(s("line.tick", { x1: x, x2: x, y1: HEIGHT - FOOT, y2: HEIGHT - FOOT + 4 }));
    if (x - 18 < free) continue;
    found.push(s("text.tick", { x, y: HEIGHT - 4, "text-anchor": "middle" }, words));
    free = x + 18;
  }
  return found;
}

function line(x) {
  const anchor = x > WIDTH - 24 ? "end" : "start";
  return [
    s("line.ttl", { x1: x, x2: x, y1: 2, y2: HEIGHT - FOOT }),
    s("text.ttl", { x: anchor === "end" ? x - 4 : x + 4, y: 11, "text-anchor": anchor }, "ttl"),
  ];
}
