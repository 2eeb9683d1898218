// Makes an element show what a newer copy of it shows. What has not changed keeps its
// nodes, and so the focus, the selection and the scroll.

export function patch(element, newer) {
  for (const { name, value } of newer.attributes)
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  // What a reader has unfolded stays so.
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

function isAlike(one, other) {
  return one.nodeName === other.nodeName && one.id === other.id;
}
