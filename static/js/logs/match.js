// A line that matches, as the list of matches shows it: with the lines around it.

import { lineId } from "./lines.js";
import { marked } from "./marked.js";

export function matchItem(match, { isCurrent }) {
  const item = document.createElement("li");
  if (isCurrent) item.setAttribute("aria-current", "true");
  const text = document.createElement("bdi");
  text.append(...marked(match.line.text, match.spans));
  const body = document.createElement("div");
  body.className = "log-text";
  body.append(around(match.before), text, around(match.after));
  item.append(linkTo(match), body);
  return item;
}

function linkTo({ number }) {
  const link = document.createElement("a");
  link.href = `#${lineId(number)}`;
  link.className = "log-number text-quiet text-end number";
  link.textContent = number;
  link.ariaLabel = `Line ${number}`;
  return link;
}

function around(lines) {
  const block = document.createElement("bdi");
  block.className = "log-context text-quiet";
  block.textContent = lines.join("\n");
  return block;
}
