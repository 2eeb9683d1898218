// Positions and labels of columns of steps.

import { styleCard } from "../theme.js";

const NUMBER = new Intl.NumberFormat("en-US");

export function whole(number) {
  return NUMBER.format(number);
}

export function percent(share) {
  return `${Number((share * 100).toPrecision(3))}%`;
}

export function describeSteps({ first, last }) {
  if (first === last) return `step ${whole(first)}`;
  return `steps ${whole(first)} to ${whole(last)}`;
}

export function centre({ first, last }) {
  return (first + last) / 2;
}

// A heat map needs equal columns without gaps: the index of each column.
export function placeColumns(columns) {
  if (!columns.length) return { places: [], num: 0, x0: 0, dx: 1 };
  const dx = Math.max(...columns.map(({ first, last }) => last - first + 1));
  const begin = columns[0].first;
  const places = columns.map(({ first }) => Math.floor((first - begin) / dx));
  return { places, num: places.at(-1) + 1, x0: begin + (dx - 1) / 2, dx };
}

// Bars of equal width, regardless of missing steps.
export function placeBars(columns) {
  return {
    x: columns.map(centre),
    width: columns.map(({ first, last }) => last - first + 1),
  };
}

export function layOut(layout, { columns, read, revision, query }) {
  const showspikes = layout.hovermode !== "closest";
  const styled = styleCard(layout, read, { showspikes });
  const { dx } = placeColumns(columns);
  const unit = dx === 1 ? "step %{x}" : `the ${whole(dx)} steps around %{x:,.1~f}`;
  return {
    ...styled,
    ...(layout.yaxis2 && { yaxis2: decorateSecond(styled.yaxis, layout.yaxis2) }),
    xaxis: { ...styled.xaxis, unifiedhovertitle: { text: unit } },
    uirevision: query, // reset the zoom for other steps or another order
    datarevision: revision,
  };
}

// The decorated axis, overridden by the second one.
function decorateSecond(first, own) {
  const { domain: _, autorange: __, showgrid: ___, ...look } = first;
  return { ...look, ...own, title: { ...look.title, text: own.title.text } };
}
