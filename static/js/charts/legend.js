// The names of a chart's lines, on one line beside its title. A click hides a line.

import { textOf } from "./labels.js";

// `hidden` holds the names of hidden lines.
export function showLegend(element, { data, layout }, hidden, onChange = () => {}) {
  const legend = element.closest(".chart").querySelector("[data-legend]");
  if (!legend) return;
  const named = data.filter(
    (trace) =>
      (layout.showlegend || trace.stackgroup) &&
      trace.showlegend !== false &&
      trace.name,
  );
  const entries = [...new Map(named.map((trace) => [trace.name, colorOf(trace)]))];
  const drawn = JSON.stringify([entries, [...hidden]]);
  if (legend.dataset.drawn === drawn) return;
  legend.dataset.drawn = drawn;
  legend.replaceChildren(
    ...entries.map(([name, color]) => {
      const entry = document.createElement("button");
      entry.type = "button";
      entry.className = "chart-legend-entry text-truncate";
      entry.textContent = entry.title = textOf(name);
      entry.style.borderColor = color;
      entry.ariaPressed = String(!hidden.has(name));
      entry.addEventListener("click", () => {
        if (!hidden.delete(name)) hidden.add(name);
        onChange();
      });
      return entry;
    }),
  );
}

function colorOf({ line, marker }) {
  return line?.color ?? marker?.color ?? "";
}

// What is drawn: Plotly's own legend would stand above the plot.
export function withoutLegend({ data, layout }, hidden) {
  return {
    data: hidden.size
      ? data.map((trace) =>
          hidden.has(trace.name) ? { ...trace, visible: false } : trace,
        )
      : data,
    layout: { ...layout, showlegend: false },
  };
}
