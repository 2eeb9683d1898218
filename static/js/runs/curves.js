// The panel of reward curves: one line for each row, highlighted together with it.

const SVG = "http://www.w3.org/2000/svg";
const SIZE = { width: 340, height: 260, left: 44, right: 8, top: 8, bottom: 24 };

const panel = () => document.querySelector("[data-curves]");
const curves = new Map(); // by run

export function startCurves() {
  if (!panel()) return;
  read();
  document.addEventListener("htmx:afterSettle", read);
  for (const [type, isOn] of [
    ["pointerover", true],
    ["pointerout", false],
    ["focusin", true],
    ["focusout", false],
  ])
    document.addEventListener(type, ({ target }) => {
      const at = target.closest?.(
        "[data-run-list] tr[data-run], [data-curves] [data-run]",
      );
      if (at) highlight(at.dataset.run, isOn);
    });
  panel().addEventListener("click", ({ target }) => {
    const run = target.closest("[data-run]")?.dataset.run;
    const link = rowOf(run)?.querySelector(".cell-title a");
    if (link) location.assign(link.href);
  });
}

function read() {
  const data = document.getElementById("run-curves");
  if (!data) return;
  curves.clear();
  for (const curve of JSON.parse(data.textContent)) curves.set(curve.id, curve);
  draw();
}

export function updateCurves(changed) {
  if (!panel()) return;
  const fresh = changed.filter(({ id, steps }) => curves.has(id) && steps.length);
  for (const curve of fresh) curves.set(curve.id, curve);
  if (fresh.length) draw();
}

const rowOf = (run) => document.querySelector(`tr[data-run="${run}"]`);

function highlight(run, isOn) {
  for (const row of document.querySelectorAll(`tr[data-run="${run}"]`))
    row.classList.toggle("is-pointed", isOn);
  const svg = panel().querySelector("svg");
  svg?.classList.toggle("has-pointed", isOn);
  const line = svg?.querySelector(`[data-run="${run}"]`);
  line?.classList.toggle("is-pointed", isOn);
  if (isOn && line) line.parentNode.append(line); // above the others
}

function draw() {
  const drawn = [...curves.values()].filter(({ steps }) => steps.length > 1);
  if (drawn.length === 0) {
    panel().textContent = "No row has two steps yet.";
    return;
  }
  const steps = drawn.flatMap((curve) => curve.steps);
  const values = drawn.flatMap((curve) => curve.values);
  const x = scale(steps, SIZE.left, SIZE.width - SIZE.right);
  const y = scale(values, SIZE.height - SIZE.bottom, SIZE.top);
  const svg = make("svg", {
    viewBox: `0 0 ${SIZE.width} ${SIZE.height}`,
    class: "curves",
    role: "img",
    "aria-label": `Reward by step of ${drawn.length} runs. The last values are in the table.`,
  });
  for (const value of [y.low, (y.low + y.high) / 2, y.high])
    svg.append(...tick(SIZE.left, y.at(value), value, "end"));
  svg.append(label(x.at(x.low), SIZE.height - 6, x.low, "start"));
  svg.append(label(x.at(x.high), SIZE.height - 6, `step ${format(x.high)}`, "end"));
  const lines = make("g", {});
  for (const curve of drawn) {
    const points = curve.steps.map(
      (step, i) => `${x.at(step).toFixed(1)},${y.at(curve.values[i]).toFixed(1)}`,
    );
    const line = make("polyline", {
      points: points.join(" "),
      "data-run": curve.id,
      class: `series-${curve.colour}`,
    });
    const title = make("title", {});
    title.textContent = curve.name;
    line.append(title);
    lines.append(line);
  }
  svg.append(lines);
  panel().replaceChildren(svg);
}

function scale(numbers, from, to) {
  const low = Math.min(...numbers);
  const high = Math.max(...numbers);
  const size = high - low || 1;
  return { low, high, at: (value) => from + ((value - low) / size) * (to - from) };
}

function tick(left, top, value, anchor) {
  const line = make("line", {
    x1: left,
    x2: SIZE.width - SIZE.right,
    y1: top,
    y2: top,
  });
  return [line, label(left - 6, top + 4, value, anchor)];
}

function label(x, y, value, anchor) {
  const text = make("text", { x, y, "text-anchor": anchor });
  text.textContent = typeof value === "number" ? format(value) : value;
  return text;
}

function format(value) {
  return Number(value.toPrecision(3)).toLocaleString("en", {
    maximumSignificantDigits: 3,
  });
}

function make(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes))
    element.setAttribute(key, value);
  return element;
}
