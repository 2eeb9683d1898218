// The tabs above the launch form: its fields, or all of them as TOML. The TOML is read
// from the server when its tab is opened, and kept while it has unapplied changes.

export function keepToml(form) {
  const panel = document.getElementById("toml-panel");
  const area = form.elements.toml;
  const tabs = [...document.querySelectorAll("[data-view]")];
  const fields = form.querySelector("[data-view-fields]");
  const refused = panel.querySelector("[data-toml-refused]");
  const news = panel.querySelector("[data-toml-news]");
  const launches = form.querySelectorAll("[data-launches]");
  const waits = form.querySelector("[data-toml-waits]");
  let written = area.value === "" ? "" : null; // null: it contains refused TOML

  function isDirty() {
    return area.value !== (written ?? "");
  }

  function showDirty() {
    const dirty = isDirty();
    for (const button of launches) button.disabled = dirty;
    waits.hidden = !dirty;
    news.textContent = dirty ? "Not applied yet." : "";
  }

  async function write() {
    if (isDirty()) return;
    const body = new FormData(form);
    body.delete("toml");
    const answer = await fetch(panel.dataset.tomlUrl, { method: "POST", body }).catch(
      () => null,
    );
    const text = answer ? await answer.text() : "";
    const isPlainText = answer?.ok || answer?.status === 422;
    refused.hidden = answer?.ok === true;
    refused.textContent = isPlainText
      ? text
      : "No response from the server. Try again.";
    written = answer?.ok ? text : "";
    area.value = written;
    showDirty();
  }

  function show(view) {
    for (const tab of tabs)
      tab.setAttribute("aria-pressed", String(tab.dataset.view === view));
    panel.hidden = view !== "toml";
    fields.hidden = view === "toml";
    if (view === "toml") write();
  }

  for (const tab of tabs) tab.addEventListener("click", () => show(tab.dataset.view));
  area.addEventListener("input", (event) => {
    event.stopPropagation(); // not a setting until it is applied
    showDirty();
  });
  // A restored page may contain typed text.
  window.addEventListener("pageshow", () => {
    showDirty();
    if (isDirty()) show("toml");
  });
  panel.querySelector("[data-toml-problems]")?.focus();
}
