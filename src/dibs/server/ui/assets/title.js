// What stands at the head of a card: which lock it is about.

import { h } from "./dom.js";
import { nameNode } from "./names.js";
import { toLock } from "./route.js";

const MOST = 44;

/** Its name, which leads to its page, and how much there is of it. */
export function titleOf(item, size, kind = null) {
  return h("h2", {}, kind, h("a", { href: toLock(item.kind, item.spelt) }, nameNode(item.name, MOST)), size);
}
