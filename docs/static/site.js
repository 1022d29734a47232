// Names and focus that the theme's markup leaves out, for keyboards and screen readers.
function complete() {
  const each = (selector, change) => document.querySelectorAll(selector).forEach(change);
  each("p.caption[role=heading]", (p) => p.setAttribute("aria-level", "2"));
  each("aside.sidebar-drawer", (a) => a.setAttribute("aria-label", "Pages of the site"));
  each("aside.toc-drawer", (a) => a.setAttribute("aria-label", "Contents of the page"));
  each("pre, .table-wrapper", (box) => {
    const scrolls = box.scrollWidth > box.clientWidth;
    if (scrolls) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  });
  const main = document.querySelector("[role=main]");
  if (main && !document.querySelector("h1")) {
    const heading = document.createElement("h1");
    heading.textContent = "Search";
    main.prepend(heading);
  }
}

window.addEventListener("load", complete);
window.addEventListener("resize", complete);
