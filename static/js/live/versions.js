// The notice of a page that meets a server of another version. The page never reloads by
// itself, which could lose unsaved text.

const NOTICES = {
  outdated:
    "Cohort was updated, so this page no longer receives new data. Save or copy unsaved text, then reload the page.",
  ahead:
    "Cohort is being updated, and this page retries until the update is complete. Reload the page if this message stays.",
};
const OVER = new Set(["live", "polling", "refused"]);

// The notice for a connection state: "" removes it, undefined keeps the current one.
export function noticeOf(link) {
  return NOTICES[link] ?? (OVER.has(link) ? "" : undefined);
}

// `region` has role="alert": screen readers announce changes, so skip equal notices.
export function showNotice(region, link) {
  const notice = noticeOf(link);
  const name = notice ? link : "";
  if (notice === undefined || name === region.dataset.notice) return;
  region.dataset.notice = name;
  region.replaceChildren();
  if (!notice) return;
  const text = document.createElement("p");
  text.textContent = notice;
  const reload = document.createElement("button");
  reload.type = "button";
  reload.className = "btn";
  reload.textContent = "Reload the page";
  reload.addEventListener("click", () => location.reload());
  const box = document.createElement("div");
  box.className = "notice notice-warning";
  box.append(text, reload);
  region.append(box);
}
