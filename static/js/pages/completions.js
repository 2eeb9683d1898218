// The list of completions: its address has all that it shows, and `c` copies it.
import "../copy_link.js";
import { bindKeys } from "../keys.js";

bindKeys();
