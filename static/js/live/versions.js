// What a page says that meets a server of another version. It never reloads by itself,
// so nobody loses what they are reading or have typed.

const NOTICES = {
  outdated:
    "Cohort was updated while this page was open. What the page shows stays as it was, and is not live any more. Save or copy what you have typed here, then reload the page.",
  ahead:
    "Cohort is being updated: the server that answered is older than this page. The page asks again by itself and lacks nothing later. Should this stay, reload it.",
};
const OVER = new Set(["live", "polling", "refused"]);

// The notice of a link's state: "" takes it away, undefined leaves it as it is.
export function noticeOf(link) {
  return NOTICES[link] ?? (OVER.has(link) ? "" : undefined);
}

// `region` is an alert, whose changes are read out; what is the same is left alone.
export function showNotice(region, link) {
  const notice = noticeOf(link);
  if (notice === undefined || notice === region.dataset.said) return;
  region.dataset.said = notice;
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
