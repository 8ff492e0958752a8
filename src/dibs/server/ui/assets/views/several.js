// A view of all keys of one kind, each as a card, as many as are asked for.

import { h, keyed, say } from "../dom.js";
import { trouble } from "../empty.js";
import { prefixField } from "../filter.js";
import { looking } from "../loop.js";
import { count } from "../people.js";
import { concerning, scanning } from "../scan.js";

const PAGE = 100;

export function listing({ title, kind, one, params, nothing, make, update }) {
  let prefix = params.get("prefix") ?? "";
  let most = PAGE;
  const told = trouble();
  const total = h("span.total", { role: "status" });
  const cards = h("div.cards");
  const none = h("div", { hidden: true }, nothing);
  const more = h("button.plain.more", { type: "button", hidden: true, onclick: () => ((most += PAGE), loop.poke()) }, "Show more");
  const field = prefixField(prefix, (value) => {
    prefix = value;
    most = PAGE;
    loop.poke();
  });
  const head = h("header.title", {}, h("h1", {}, title), total, h("div.fields", {}, field));
  const element = h("section.view", {}, head, told.element, none, cards, more);

  const look = async () => {
    const { items, cursor } = await gather(scanning(kind, prefix), most);
    told.clear();
    none.hidden = items.length > 0;
    more.hidden = cursor === null;
    say(total, items.length ? `${count(items.length, one)}${cursor ? " and more" : ""}` : "");
    keyed(cards, items, (item) => item.key, make, update);
  };
  const concerns = (event) => concerning(kind, prefix)(event);
  const loop = looking(look, { every: 2, concerns, failed: told.tell });
  return { element, stop: loop.stop };
}

/** So many, though a page may have fewer than it could. */
async function gather(fetchPage, most) {
  const items = [];
  let cursor = null;
  do {
    const page = await fetchPage(cursor, Math.min(most - items.length, 1_000));
    items.push(...page.items);
    cursor = page.cursor;
  } while (cursor !== null && items.length < most);
  return { items, cursor };
}
