// Trees of the page: `h` describes an element, `patch` makes what is on the screen equal to a description.
//
// Elements that stay the same kind at the same place stay the same elements, so that focus, selection, open details and
// what somebody is typing survive an update a second. No text is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Describe an element. `key` among the properties says which one of its siblings it is. Falsy children are left out. */
export function h(tag, properties, ...children) {
  return { tag, properties: properties ?? {}, children: children.flat(Infinity).filter(isShown) };
}

function isShown(child) {
  return child !== null && child !== undefined && child !== false && child !== "";
}

/** Make the children of an element equal to their descriptions. */
export function patch(parent, ...descriptions) {
  const wanted = descriptions.flat(Infinity).filter(isShown);
  const byKey = new Map();
  for (const node of parent.childNodes) if (node.lockstepKey !== undefined) byKey.set(node.lockstepKey, node);
  let next = parent.firstChild;
  for (const description of wanted) {
    const key = description.properties?.key;
    let node = key === undefined ? next : (byKey.get(String(key)) ?? null);
    if (key !== undefined) byKey.delete(String(key)); // a key that comes twice still describes two elements
    if (node && !isSame(node, description)) node = null;
    if (node === null || node === undefined) {
      parent.insertBefore(create(description, parent), next);
      continue;
    }
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
    update(node, description);
  }
  while (next) {
    const following = next.nextSibling;
    next.remove();
    next = following;
  }
}

function isSame(node, description) {
  if (typeof description !== "object") return node.nodeType === Node.TEXT_NODE;
  const key = description.properties.key;
  return (
    node.nodeType === Node.ELEMENT_NODE &&
    node.localName === description.tag &&
    node.lockstepKey === (key === undefined ? undefined : String(key))
  );
}

function create(description, parent) {
  if (typeof description !== "object") return document.createTextNode(String(description));
  const isDrawing = description.tag === "svg" || (parent.namespaceURI === SVG && parent.localName !== "foreignObject");
  const element = isDrawing
    ? document.createElementNS(SVG, description.tag)
    : document.createElement(description.tag);
  if (description.properties.key !== undefined) element.lockstepKey = String(description.properties.key);
  update(element, description);
  return element;
}

function update(node, description) {
  if (typeof description !== "object") {
    if (node.data !== String(description)) node.data = String(description);
    return;
  }
  const before = node.lockstepProperties ?? {};
  const { properties } = description;
  for (const name of Object.keys(before)) if (!(name in properties)) set(node, name, undefined);
  for (const [name, value] of Object.entries(properties)) {
    if (before[name] !== value) set(node, name, value);
  }
  node.lockstepProperties = properties;
  if (properties.own) return; // what is inside belongs to whoever made it, as of a chart
  patch(node, description.children);
}

function set(node, name, value) {
  if (name === "key" || name === "own" || name === "made") return;
  if (name.startsWith("on")) listen(node, name.slice(2), value);
  else if (name === "value" && "value" in node && node.localName !== "progress") {
    if (node !== document.activeElement) node.value = value ?? "";
  } else if (name === "checked") node.checked = Boolean(value);
  else if (value === undefined || value === null || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}

function listen(node, type, handler) {
  node.lockstepHandlers ??= {};
  if (!(type in node.lockstepHandlers)) node.addEventListener(type, (event) => node.lockstepHandlers[type]?.(event));
  node.lockstepHandlers[type] = handler;
}
