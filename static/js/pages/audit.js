// An audit's charts; a click opens the groups of the step.
import { drawCards } from "../charts/cards.js";

drawCards("audit-figures", (plot, { x }) => {
  location.assign(`${plot.dataset.groups}?step=${x}`);
});
