// Updates an element to match a newer copy. Unchanged nodes stay, and with them focus,
// selection and scroll.

export function patch(element, newer) {
  for (const { name, value } of newer.attributes)
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  // An opened <details> stays open.
  for (const { name } of [...element.attributes])
    if (!newer.hasAttribute(name) && name !== "open") element.removeAttribute(name);
  const [mine, theirs] = [[...element.childNodes], [...newer.childNodes]];
  if (
    mine.length !== theirs.length ||
    mine.some((node, i) => !isAlike(node, theirs[i]))
  ) {
    element.replaceChildren(...theirs);
    return;
  }
  mine.forEach((node, i) => {
    if (node.nodeType === Node.ELEMENT_NODE) patch(node, theirs[i]);
    else if (node.nodeValue !== theirs[i].nodeValue)
      node.nodeValue = theirs[i].nodeValue;
  });
}

function isAlike(a, b) {
  return a.nodeName === b.nodeName && a.id === b.id;
}
