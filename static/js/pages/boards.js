// The menu of boards: which is open, whether it has changed, and what is to be saved.

const menu = document.querySelector("[data-boards]");

function write(query) {
  query.sort();
  return query.toString();
}

// The board's name where one is open.
export function openBoard() {
  return menu.dataset.name ?? "";
}

// `list` has the ticked charts; `view` says how charts are drawn.
export function showBoard({ list, view }) {
  const query = new URLSearchParams(view.write(location.search, { isWhole: true }));
  for (const name of menu.dataset.notSaved.split(" ")) query.delete(name);
  for (const field of menu.querySelectorAll("[name=query], [name=address]"))
    field.value = query;
  const { saved } = menu.dataset;
  const isOpen = saved !== undefined && list.isNarrowed;
  const isChanged = isOpen && write(query) !== write(new URLSearchParams(saved));
  const isHidden = {
    changed: !isChanged,
    save: !list.isNarrowed,
    hint: list.isNarrowed,
  };
  for (const part of document.querySelectorAll("[data-board-part]"))
    part.hidden = isHidden[part.dataset.boardPart];
}
