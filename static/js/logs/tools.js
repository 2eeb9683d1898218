// The buttons beside a log's search: whether long lines wrap, and Copy.

import { copyText, sayOn } from "../copy.js";

export function listenToWrap(button, { view, onWrap }) {
  const wrap = () => {
    const isWrapped = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", isWrapped);
    view.classList.toggle("is-unwrapped", !isWrapped);
    localStorage.setItem("log-wrap", isWrapped ? "yes" : "no");
    onWrap();
  };
  button.addEventListener("click", wrap);
  if (localStorage.getItem("log-wrap") === "no") wrap();
}

export function listenToCopy(button, readLines) {
  button.addEventListener("click", async () => {
    const lines = readLines();
    const isCopied = await copyText(lines.map(({ text }) => text).join("\n"));
    const copied = `Copied ${lines.length.toLocaleString("en-US")} lines`;
    sayOn(button, isCopied ? copied : "Copying is not allowed");
  });
}
