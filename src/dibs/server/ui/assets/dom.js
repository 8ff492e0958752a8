// Elements, made of texts only: what others have written never becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `what` is a tag, with classes after dots; what follows are its attributes and children. */
export function h(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return filled(document.createElement(tag), classes, attributes, children);
}

/** The same, of a drawing. */
export function s(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return filled(document.createElementNS(SVG, tag), classes, attributes, children);
}

function filled(element, classes, attributes, children) {
  element.classList.add(...classes);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

/** Set a text, if it is another one: a screen reader need not hear it again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute, or take it away, if that changes anything. */
export function mark(element, name, value) {
  if (value == null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/**
 * Make the children of `parent` show `items`, in their order, keeping the elements that are there:
 * so focus, selection and what moves stay as they are. `make` gives an element, `update` brings it up to date.
 */
export function keyed(parent, items, keyOf, make, update = () => {}) {
  const there = new Map();
  for (const child of parent.children) there.set(child.itemKey, child);
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = there.get(key);
    if (element) there.delete(key);
    else {
      element = make(item);
      there.delete(element.itemKey);
      element.itemKey = key;
    }
    update(element, item);
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  for (const child of there.values()) child.remove();
}

/** The same, where all elements are alike and `update` makes of any of them what it should be. */
export function recycled(parent, items, keyOf, make, update) {
  const wanted = new Set(items.map(keyOf));
  const isFree = (child) => !wanted.has(child.itemKey) && !child.contains(document.activeElement);
  const free = [...parent.children].filter(isFree);
  keyed(parent, items, keyOf, (item) => free.pop() ?? make(item), update);
}
