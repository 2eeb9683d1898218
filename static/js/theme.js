// Runs in <head>, before anything is painted, so a dark page never flashes white.
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return localStorage.getItem("theme") || "auto";
    } catch {
      return "auto"; // storage is refused in some private windows
    }
  }

  function apply() {
    const choice = chosen();
    const dark = choice === "dark" || (choice === "auto" && system.matches);
    const theme = dark ? "dark" : "light";
    if (root.dataset.bsTheme === theme) return;
    root.dataset.bsTheme = theme;
    // Charts take their colours from CSS variables and redraw on this.
    document.dispatchEvent(new CustomEvent("themechange", { detail: theme }));
  }

  window.cohortTheme = {
    chosen,
    choose(choice) {
      try {
        localStorage.setItem("theme", choice);
      } catch {
        root.dataset.bsTheme = choice === "dark" ? "dark" : "light";
      }
      apply();
    },
  };
  system.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  apply();
})();
