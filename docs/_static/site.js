// What scrolls by itself can be reached with the keyboard: wide tables and long lines of code.
function reachable() {
  for (const own of document.querySelectorAll(".table-wrapper, .drawing-wrapper, article pre")) {
    if (own.scrollWidth > own.clientWidth) own.tabIndex = 0;
    else own.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
