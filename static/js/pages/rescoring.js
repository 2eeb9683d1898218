// A rescoring's charts; a click opens the completions of a point.
import { drawCards } from "../charts/cards.js";

function open(plot, { customdata, x }) {
  const groups = plot.dataset.groups;
  if (customdata) {
    const [step, prompt, position] = customdata;
    location.assign(`${groups}${step}/${prompt}/#completion-${position}`);
  } else if (plot.dataset.figure === "means") {
    location.assign(`${groups}?step=${x}`);
  }
}

drawCards("rescoring-figures", open);
