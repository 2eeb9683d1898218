// Charts of a run's curriculum.
import { drawCards } from "../charts/cards.js";

drawCards("curriculum-figures", () => {});
