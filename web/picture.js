// The live picture of the page table: one square a page, and the same in words.

const KINDS = { ".": "free", 1: "held", 2: "stored", 3: "shared", 4: "filling" };
const SQUARE = 8; // device pixels of a page, its gap included
const GAP = 1;

const words = ({ pages, window, left }) => {
  const count = {};
  for (const code of pages) count[KINDS[code]] = (count[KINDS[code]] ?? 0) + 1;
  const parts = [`${pages.length - (count.free ?? 0)} of ${pages.length} pages in use`];
  for (const kind of ["stored", "shared"]) if (count[kind]) parts.push(`${count[kind]} ${kind}`);
  if (window) parts.push(`window of ${window} tokens, ${left} pages left behind`);
  return parts.join(", ");
};

const draw = (canvas, pages) => {
  const style = getComputedStyle(document.documentElement);
  const across = Math.max(8, Math.floor((canvas.clientWidth || 272) / SQUARE));
  // A large pool is mostly free: show it up to the last page in use, and at least four rows.
  const used = Math.max(pages.length - [...pages].reverse().findIndex((code) => code !== "."), 0);
  const shown = Math.min(pages.length, Math.max(4, Math.ceil((/[^.]/.test(pages) ? used : 0) / across) + 1) * across);
  canvas.width = across * SQUARE;
  canvas.height = Math.ceil(shown / across) * SQUARE;
  const context = canvas.getContext("2d");
  for (let page = 0; page < shown; page++) {
    context.fillStyle = style.getPropertyValue(`--${KINDS[pages[page]]}`);
    context.fillRect((page % across) * SQUARE, Math.floor(page / across) * SQUARE, SQUARE - GAP, SQUARE - GAP);
  }
};

// A canvas keeps its colours when the rest of the page changes to light or dark.
let again = () => {};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => again());

export const showPages = (place, groups) => {
  again = () => showPages(place, groups);
  while (place.children.length > groups.length || place.querySelector(".quiet")) place.lastElementChild.remove();
  groups.forEach((group, i) => {
    let box = place.children[i];
    if (box === undefined) {
      box = document.createElement("div");
      box.className = "group";
      box.append(document.createElement("strong"), document.createElement("canvas"), document.createElement("p"));
      box.children[1].setAttribute("role", "img");
      place.append(box);
    }
    const said = words(group);
    box.children[0].textContent = `${group.name} layers`;
    box.children[1].setAttribute("aria-label", said);
    box.children[2].textContent = said;
    draw(box.children[1], group.pages);
  });
};
