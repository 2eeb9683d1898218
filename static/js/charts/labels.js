// Plotly parses labels as a subset of HTML.

export function asLabel(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

export function textOf(label) {
  return label.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}
