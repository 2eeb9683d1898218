// Texts that screen readers announce when they change; equal texts are not written again.

export function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

export function showWarnings(region, texts) {
  if (texts.join() === [...region.children].map((p) => p.textContent).join()) return;
  region.replaceChildren(
    ...texts.map((text) => {
      const paragraph = document.createElement("p");
      paragraph.className = "notice notice-warning";
      paragraph.textContent = text;
      return paragraph;
    }),
  );
}
