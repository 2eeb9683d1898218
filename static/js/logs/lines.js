// The lines of a log as a page draws them.

import { marked } from "./marked.js";

// ID and URL fragment of a line.
export function lineId(number) {
  return `L${number}`;
}

export class LogLines {
  #list;
  #search;
  #server;
  #nodes = new Map(); // a line's id -> its element

  constructor({ list, search, server }) {
    this.#list = list;
    this.#search = search;
    this.#server = server;
  }

  // Lines that stay keep their elements, so a selection and the scroll stay too.
  draw(lines) {
    const drawn = new Map();
    for (const line of lines) {
      const id = lineId(line.number);
      const old = this.#nodes.get(id);
      const isSame = old?.dataset.text === keyOf(line, this.#search);
      const node = isSame ? old : this.#element(line);
      if (old && !isSame) old.replaceWith(node);
      drawn.set(id, node);
    }
    for (const [id, node] of this.#nodes)
      if (!drawn.has(id) && node.parentNode) node.remove();
    this.#place(drawn.values());
    this.#nodes = drawn;
    this.#list.classList.toggle("has-times", lines.some(hasTime));
  }

  #place(nodes) {
    let before = null;
    for (const node of nodes) {
      const place = before ? before.nextSibling : this.#list.firstChild;
      if (place !== node) this.#list.insertBefore(node, place);
      before = node;
    }
  }

  // The line's element, or undefined where it is not drawn: then none is the current one.
  setCurrent(number) {
    for (const other of this.#list.querySelectorAll(".is-current"))
      other.classList.remove("is-current");
    const node = this.#nodes.get(lineId(number));
    node?.classList.add("is-current");
    return node;
  }

  #element(line) {
    const item = document.createElement("li");
    item.className = "log-line";
    item.id = lineId(line.number);
    item.dataset.text = keyOf(line, this.#search);
    const number = document.createElement("a");
    number.className = "log-number text-quiet text-end number";
    number.href = `#${item.id}`;
    number.tabIndex = -1; // a stop at each of 2,000 lines would be no help
    number.textContent = line.number;
    const text = document.createElement("bdi");
    text.className = "log-text";
    text.append(...marked(line.text, this.#search.spans.get(item.id) ?? []));
    item.append(number, timeOf(line), text);
    if (line.num_chars > line.text.length) item.append(this.#moreButton(line, text));
    return item;
  }

  #moreButton(line, text) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "link-button log-more fs-5";
    button.textContent = `Show all ${line.num_chars.toLocaleString("en-US")} characters`;
    button.addEventListener("click", async () => {
      const whole = await this.#server.whole(line);
      if (!whole) return;
      text.textContent = whole.text;
      button.remove();
    });
    return button;
  }
}

function keyOf(line, search) {
  return `${line.num_chars} ${search.spans.has(lineId(line.number))} ${line.text}`;
}

function hasTime({ time }) {
  return time !== null && time !== undefined;
}

function timeOf(line) {
  const time = document.createElement("time");
  time.className = "log-time text-quiet number";
  if (!hasTime(line)) return time;
  const whole = new Date(line.time * 1000).toISOString();
  time.dateTime = whole;
  time.title = `${whole.replace("T", " ").slice(0, 23)} UTC`;
  time.textContent = whole.slice(11, 19); // 12:03:59, in UTC as all times are here
  return time;
}
