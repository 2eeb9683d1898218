// Plotly parses labels as a subset of HTML.

export function asLabel(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

export function textOf(label) {
  return label.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}

// What a smoothed line shows on hover: the value itself, and in grey what is drawn.
export function hoverOf(
  { hovertemplate: template },
  { raw, weight, read, isShort = false },
) {
  if (!template || weight <= 0) return { hovertemplate: template };
  const [drawn, extra] = template.split("<extra>");
  const own = drawn.replaceAll("%{y", "%{text");
  if (isShort) return { text: raw, hovertemplate: own };
  const color = read("--cohort-quiet");
  const both = `${own}<br><span style="color:${color}">smoothed ${drawn}</span>`;
  const isNamed = extra !== undefined;
  return { text: raw, hovertemplate: isNamed ? `${both}<extra>${extra}` : both };
}
