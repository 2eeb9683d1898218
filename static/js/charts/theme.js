// Figures use CSS variables as colours, which must be resolved for Plotly.

const VARIABLE = /^var\((--[\w-]+)\)$/;

// Options of every chart.
export const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };

export function readColors(root = document.documentElement) {
  const style = getComputedStyle(root);
  return (name) => style.getPropertyValue(name).trim();
}

export function resolveColors(value, read) {
  if (typeof value === "string") {
    const match = VARIABLE.exec(value);
    return match ? read(match[1]) : value;
  }
  if (Array.isArray(value)) return value.map((item) => resolveColors(item, read));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [key, resolveColors(item, read)]),
  );
}

// "#0b62c4" or "#fff" and 0.2 -> "rgba(11, 98, 196, 0.2)"
export function withAlpha(color, alpha) {
  const short = /^#([\da-f])([\da-f])([\da-f])$/i.exec(color);
  const hex = short
    ? `#${short
        .slice(1)
        .map((c) => c + c)
        .join("")}`
    : color;
  if (!/^#[\da-f]{6}$/i.test(hex)) return color;
  const parts = [1, 3, 5].map((i) => Number.parseInt(hex.slice(i, i + 2), 16));
  return `rgba(${parts.join(", ")}, ${alpha})`;
}

// Colours of a trace; meta.alpha is how opaque its area is.
export function paint(trace, read) {
  const colored = resolveColors(trace, read);
  const alpha = trace.meta?.alpha;
  if (alpha === undefined) return colored;
  return { ...colored, fillcolor: withAlpha(colored.fillcolor, alpha) };
}

// Layout of every chart; `decorate` changes each axis.
export function styleLayout(layout, read, decorate) {
  const colors = layoutColors(read);
  return {
    ...layout,
    autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { ...colors.font, family: "inherit", size: 12 },
    hoverlabel: colors.hoverlabel,
    xaxis: decorate(layout.xaxis, colors),
    yaxis: decorate(layout.yaxis, colors),
    ...(layout.yaxis2 ? { yaxis2: decorate(layout.yaxis2, colors) } : {}),
  };
}

// The same on a card, which has the title; `axis` is for both axes.
export function styleCard(layout, read, axis = {}) {
  const decorate = (own, colors) => ({
    ...colors.axis,
    automargin: true,
    ...axis,
    ...own,
    title: titleOf(own.title, colors),
    tickfont: { ...colors.axis.tickfont, size: 11 },
  });
  return {
    ...styleLayout(layout, read, decorate),
    margin: { l: 48, r: 12, t: 4, b: 20 },
    legend: {
      orientation: "h",
      traceorder: "normal",
      entrywidth: 0,
      x: 0,
      y: 1,
      yanchor: "bottom",
      font: { size: 11 },
    },
  };
}

// An empty title would take the room of one.
function titleOf(title, colors) {
  if (!title?.text) return {};
  return { ...title, font: { size: 11, color: colors.title.color }, standoff: 6 };
}

function layoutColors(read) {
  const [text, quiet, grid, line, surface] = [
    "text",
    "quiet",
    "grid",
    "line",
    "surface",
  ].map((name) => read(`--cohort-${name}`));
  const axis = {
    gridcolor: grid,
    linecolor: line,
    zerolinecolor: line,
    tickfont: { color: quiet },
    spikecolor: quiet,
  };
  return {
    font: { color: text },
    hoverlabel: { bgcolor: surface, bordercolor: line, font: { color: text } },
    axis,
    title: { color: quiet },
  };
}
