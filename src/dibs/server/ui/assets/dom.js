// Elements, made of text only: what other people wrote never becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return an HTML element. `what` is a tag with classes after dots. Listeners are attributes that begin with "on". */
export function h(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return filled(document.createElement(tag), classes, attributes, children);
}

/** Return an SVG element. */
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

/** Set the text of an element if it differs, so that a screen reader does not repeat it. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute if it differs. Null and false remove it. */
export function setAttribute(element, name, value) {
  if (value == null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/**
 * Make the children of `parent` show `items`, in their order. An element stays as long as its item does, and
 * with it focus, selection and animations. `make` creates an element, `update` brings it up to date.
 */
export function keyed(parent, items, keyOf, make, update = () => {}) {
  const old = new Map();
  for (const child of parent.children) old.set(child.itemKey, child);
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = old.get(key);
    if (element) old.delete(key);
    else {
      element = make(item);
      old.delete(element.itemKey);
      element.itemKey = key;
    }
    update(element, item);
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  for (const child of old.values()) child.remove();
}

/** The head of a view: its title, a line of status, and its filters. */
export function heading(title, status, ...fields) {
  return h("header.title", {}, h("h1", {}, title), status, h("div.fields", {}, ...fields));
}

/** A placeholder for an empty view. `command` is what to type to change that. */
export function empty(title, text, command) {
  const code = command ? h("pre", {}, h("code", {}, command)) : null;
  return h("div.empty", {}, h("h2", {}, title), h("p", {}, text), code);
}

/** A line for an error of the service. It is hidden until `show(error)`, and again after `clear()`. */
export function errorLine() {
  const element = h("p.trouble", { role: "alert", hidden: true });
  const show = (error) => {
    setText(element, error.message);
    element.hidden = false;
  };
  return { element, show, clear: () => (element.hidden = true) };
}
