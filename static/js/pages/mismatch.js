// Charts of the gap; a click shows a step, or opens the group of a completion.
import { drawCards } from "../charts/cards.js";

drawCards("mismatch-figures", (plot, { customdata, x }) => {
  if (plot.dataset.figure === "steps") {
    const address = new URL(location.href);
    address.searchParams.set("step", x);
    location.assign(address);
  } else if (customdata && customdata[0] >= 0) {
    const [prompt, position] = customdata;
    location.assign(`${plot.dataset.groups}${prompt}/#completion-${position}`);
  }
});
