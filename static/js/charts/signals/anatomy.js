// Time of a step by phase.

import { sig3 } from "../../live/numbers.js";
import { resolveColors } from "../theme.js";
import { describeSteps, layOut, percent, placeBars } from "./columns.js";

export function fillAnatomy(figure, answer, { read, revision, query }) {
  const { columns, seconds, dead, dead_of: deadOf } = answer;
  const share = (value, i) => percent(value / seconds.step[i]);
  const describe = (value, i, lost) => {
    const whole = `${sig3(value)} s (${share(value, i)})`;
    return lost ? `${whole}, ${sig3(lost)} s without signal` : whole;
  };
  const bars = placeBars(columns);
  const traces = resolveColors(figure.data, read);
  const phases = traces.slice(0, -1).map((trace) => {
    const { phase } = trace.meta;
    const values = seconds[phase] ?? [];
    const text = values.map((value, i) => describe(value, i, deadOf[phase]?.[i]));
    return { ...trace, ...bars, y: values, customdata: text };
  });
  const isKnown = dead.some((value) => value !== null);
  const line = {
    ...traces.at(-1),
    x: bars.x,
    y: dead,
    visible: isKnown,
    customdata: dead.map((value, i) => (value === null ? "–" : describe(value, i))),
  };
  return {
    data: [...phases, line],
    layout: layOut(figure.layout, { columns, read, revision, query }),
    isEmpty: !columns.length,
    note: answer.note,
    table: {
      head: ["Steps", "Seconds", ...phases.map(({ name }) => name), "Without signal"],
      rows: columns.map((column, i) => ({
        step: column.last,
        cells: [
          describeSteps(column),
          sig3(seconds.step[i]),
          ...phases.map(({ customdata }) => customdata[i]),
          line.customdata[i],
        ],
      })),
    },
  };
}
