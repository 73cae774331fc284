// Creates elements. Text is always a text node, because names of groups, members and topics are untrusted.

const NS = "http://www.w3.org/2000/svg";
const fill = (node, attributes, children) => {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
};
export const element = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(NS, name), attributes, children);

export const badge = (words, kind = "quiet") => element("span", { class: `badge ${kind}` }, words);
export const link = (href, words, attributes = {}) => element("a", { href, ...attributes }, words);
export const set = (node, ...children) => {
  node.replaceChildren(...children.filter(Boolean));
  return node;
};
// changes a text only if it differs, so that screen readers do not repeat it
export const say = (node, words) => {
  if (node.textContent !== words) node.textContent = words;
};
