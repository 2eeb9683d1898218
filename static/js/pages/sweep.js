// A sweep's figures, from the page; a drag along an axis keeps the runs of that range.
import { CONFIG, readColors, resolveColors, styleCard } from "../charts/theme.js";

const figures = JSON.parse(document.getElementById("sweep-figures").textContent);
const FAINT = 0.12;

function hexToRgb(hex) {
  const full = hex.length === 4 ? hex.replace(/[\da-f]/gi, "$&$&") : hex;
  return [1, 3, 5].map((i) => Number.parseInt(full.slice(i, i + 2), 16));
}

// From a quiet grey for the lowest outcome to the series' colour for the highest.
function colorOf(height, read) {
  if (height === null) return read("--cohort-quiet");
  const [low, high] = ["--cohort-line", "--cohort-series-1"].map((name) =>
    hexToRgb(read(name)),
  );
  const share = 0.2 + 0.8 * height;
  const mixed = low.map((from, i) => Math.round(from + share * (high[i] - from)));
  return `rgb(${mixed.join(", ")})`;
}

function paintLine(trace, read) {
  const { height, isKept } = trace.meta;
  const color = isKept ? colorOf(height, read) : read("--cohort-quiet");
  return {
    ...trace,
    opacity: isKept ? 1 : FAINT,
    hoverinfo: isKept ? undefined : "skip",
    hovertemplate: isKept ? trace.hovertemplate : undefined,
    line: { ...trace.line, color },
    marker: { ...trace.marker, color },
  };
}

const STYLE = {
  parallel: ({ data, layout }, read) => ({
    data: data.map((trace) => paintLine(trace, read)),
    layout: {
      ...layout,
      margin: { l: 16, r: 16, t: 48, b: 8 },
      xaxis: { ...layout.xaxis, automargin: false },
    },
  }),
  importance: ({ data, layout }) => ({
    data,
    layout: { ...layout, margin: { l: 8, r: 16, t: 8, b: 36 } },
  }),
};

function draw() {
  const read = readColors();
  for (const plot of document.querySelectorAll("[data-figure]")) {
    const name = plot.dataset.figure;
    const figure = figures[name];
    const styled = { ...figure, layout: styleCard(figure.layout, read) };
    const { data, layout } = STYLE[name]?.(styled, read) ?? styled;
    const isFirst = !plot.classList.contains("js-plotly-plot");
    const config = name === "parallel" ? { ...CONFIG, doubleClick: false } : CONFIG;
    window.Plotly.react(
      plot,
      resolveColors(data, read),
      resolveColors(layout, read),
      config,
    );
    if (isFirst) listen(plot, name);
  }
}

function listen(plot, name) {
  plot.on("plotly_click", ({ points: [point] }) => {
    const run = name === "parallel" ? point.data.meta.run : point.customdata;
    const link = document.querySelector(`a[data-run="${run}"]`);
    if (link) location.assign(link.href);
  });
  if (name === "parallel") plot.on("plotly_selected", keep);
}

// A box over axes selects a range of each.
function keep(selected) {
  if (!selected?.range) return;
  const ends = (name) => [...selected.range[name]].sort((a, b) => a - b);
  const [left, right] = ends("x");
  const [bottom, top] = ends("y").map((end) => Math.min(1, Math.max(0, end)));
  const { axes } = figures.parallel.layout.meta;
  const inside = axes.filter((_, place) => left <= place && place <= right);
  if (inside.length === 0) return;
  const query = new URLSearchParams(location.search);
  for (const part of ["keep_axis", "keep_from", "keep_to"]) query.delete(part);
  const taken = new Set(inside.map(({ key }) => key));
  const others = query
    .getAll("keep")
    .filter((word) => !taken.has(word.slice(0, word.lastIndexOf(":"))));
  query.delete("keep");
  for (const word of others) query.append("keep", word);
  for (const axis of inside)
    query.append("keep", `${axis.key}:${at(axis, bottom)}..${at(axis, top)}`);
  location.assign(`?${query}`);
}

// The number at a height between 0 and 1, as it is written in an address.
function at({ low, high, isLog }, height) {
  const value = isLog ? low * (high / low) ** height : low + height * (high - low);
  return String(Number(value.toPrecision(6)));
}

for (const form of document.querySelectorAll("[data-sweep-form]")) {
  form.addEventListener("change", () => form.requestSubmit());
  form.querySelector("[data-without-script]").hidden = true;
}
document.addEventListener("themechange", draw);
draw();
