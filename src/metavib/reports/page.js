"use strict";
// Without this script the page is whole: one table with every measure in it. With it one measure is shown at a time,
// columns sort, and what is folded opens for links and for paper.

function choose(figure, name) {
  for (const part of figure.querySelectorAll("[data-measure]")) part.hidden = part.dataset.measure !== name;
}

for (const figure of document.querySelectorAll(".measures")) {
  const select = figure.querySelector("select");
  figure.classList.add("chosen");
  figure.querySelector(".choice").hidden = false;
  select.addEventListener("change", () => choose(figure, select.value));
  choose(figure, select.value); // a browser may remember what was chosen before
}

function valueOf(row, column) {
  const cell = row.children[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  const number = Number.parseFloat(text);
  return { number: Number.isNaN(number) ? null : number, text };
}

function compare(left, right) {
  if (left.number !== null && right.number !== null) return left.number - right.number;
  return left.text.localeCompare(right.text, "en", { numeric: true });
}

function sort(table, column, descending) {
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => !row.classList.contains("measure"));
    const known = rows.filter((row) => valueOf(row, column).text !== "\u2013");
    const unknown = rows.filter((row) => valueOf(row, column).text === "\u2013");
    known.sort((a, b) => (descending ? -1 : 1) * compare(valueOf(a, column), valueOf(b, column)));
    body.append(...known, ...unknown); // what was not measured stands last in both orders
  }
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sort(table, column, descending);
    });
  });
}

function unfold() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = target && target.closest("details");
  if (folded && !folded.open) {
    folded.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", unfold);
unfold();

let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of folded) one.open = false;
});
