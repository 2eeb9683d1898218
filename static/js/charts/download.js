// Downloads of a chart.

import { textOf } from "./labels.js";

export function saveText(name, text) {
  save(name, URL.createObjectURL(new Blob([text], { type: "text/csv" })));
}

function save(name, url) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export async function savePicture(element, { format = "png", name, title }) {
  const background = getComputedStyle(element.closest(".card")).backgroundColor;
  const layout = {
    ...element.layout,
    title: { text: title, font: { size: 14 }, x: 0.02 },
    margin: { ...element.layout.margin, t: 64 },
    paper_bgcolor: background,
    ...(element.data.some(({ stackgroup }) => stackgroup) ? { showlegend: true } : {}),
    width: 960,
    height: 480,
  };
  const url = await window.Plotly.toImage(
    { data: element.data, layout },
    { format, scale: format === "png" ? 2 : 1 },
  );
  save(`${name}.${format}`, url);
}

// One row per step, or per position on another axis; for each line its raw and its
// smoothed values.
export function asCsv(data, by = "step") {
  const columns = data.filter((trace) => trace.customdata && !trace.meta?.isFaint);
  const named = columns.flatMap(({ name, customdata, y, meta = {} }) => {
    const full = textOf(meta.of ? `${meta.of}: ${name}` : (meta.full ?? name));
    const own = { name: full, steps: customdata, values: meta.raw ?? y };
    const drawn = {
      name: `${full} (smoothed ${meta.weight})`,
      steps: customdata,
      values: y,
    };
    return meta.weight ? [own, drawn] : [own];
  });
  const rows = new Map();
  named.forEach(({ steps, values }, column) => {
    steps.forEach((step, i) => {
      if (!rows.has(step)) rows.set(step, new Array(named.length).fill(""));
      rows.get(step)[column] = values[i] ?? "";
    });
  });
  const steps = [...rows.keys()].sort((a, b) => a - b);
  const head = [by, ...named.map(({ name }) => name)];
  return [head, ...steps.map((step) => [step, ...rows.get(step)])]
    .map((row) => row.map(quote).join(","))
    .join("\n")
    .concat("\n");
}

// A leading quote keeps spreadsheets from running text as a formula.
function quote(cell) {
  const isFormula = typeof cell === "string" && /^[=+\-@\t\r]/.test(cell);
  const text = isFormula ? `'${cell}` : String(cell);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
