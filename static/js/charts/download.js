// A chart as a file.

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

export async function savePng(element, { name, title }) {
  const background = getComputedStyle(element.closest(".card")).backgroundColor;
  const layout = {
    ...element.layout,
    title: { text: title, font: { size: 14 }, x: 0.02 },
    margin: { ...element.layout.margin, t: 64 },
    paper_bgcolor: background,
    width: 960,
    height: 480,
  };
  const url = await window.Plotly.toImage(
    { data: element.data, layout },
    { format: "png", scale: 2 },
  );
  save(`${name}.png`, url);
}

// One row a step, one column a line; faint raw lines under smoothed ones are left out.
export function asCsv(data) {
  const lines = data.filter((trace) => trace.customdata);
  const rows = new Map();
  lines.forEach((trace, column) => {
    trace.customdata.forEach((step, i) => {
      if (!rows.has(step))
        rows.set(
          step,
          lines.map(() => ""),
        );
      rows.get(step)[column] = trace.y[i];
    });
  });
  const steps = [...rows.keys()].sort((a, b) => a - b);
  const head = ["step", ...lines.map((trace) => plain(trace.name))];
  return [head, ...steps.map((step) => [step, ...rows.get(step)])]
    .map((row) => row.map(quote).join(","))
    .join("\n")
    .concat("\n");
}

// Names come escaped, as Plotly reads labels as a kind of HTML.
function plain(name) {
  return name.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}

// A spreadsheet runs a text that begins like a formula; a quote before it prevents that.
function quote(cell) {
  const isFormula = typeof cell === "string" && /^[=+\-@\t\r]/.test(cell);
  const text = isFormula ? `'${cell}` : String(cell);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
