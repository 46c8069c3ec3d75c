"use strict";
(() => {
  const root = document.documentElement;

  // A picture that occurs twice is embedded once; the other places borrow it.
  const sources = new Map();
  for (const image of document.querySelectorAll("img[data-key]")) sources.set(image.dataset.key, image.src);
  for (const image of document.querySelectorAll("img[data-same]")) {
    const source = sources.get(image.dataset.same);
    if (source) { image.src = source; image.hidden = false; }
  }

  // Theme: as the system has it, until the reader chooses.
  const themes = document.querySelector("#theme");
  const stored = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (stored) { root.dataset.theme = stored; }
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { themes.textContent = dark() ? "Light" : "Dark"; };
  themes.hidden = false;
  label();
  themes.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* file:// may have no storage */ }
    label();
  });

  // Explanations open beside the word they explain.
  for (const note of document.querySelectorAll("[popover]")) {
    note.addEventListener("toggle", (event) => {
      const button = document.querySelector(`[popovertarget="${note.id}"][data-last]`);
      if (event.newState !== "open" || !button) return;
      const at = button.getBoundingClientRect();
      const left = Math.min(Math.max(8, at.left - 20), innerWidth - note.offsetWidth - 8);
      const below = at.bottom + 8 + note.offsetHeight < innerHeight;
      note.style.cssText = `margin:0;left:${left}px;top:${below ? at.bottom + 8 : Math.max(8, at.top - note.offsetHeight - 8)}px`;
    });
  }
  for (const button of document.querySelectorAll("[popovertarget]")) {
    button.addEventListener("click", () => {
      for (const other of document.querySelectorAll("[data-last]")) delete other.dataset.last;
      button.dataset.last = "";
    }, true);
  }

  // The cluster tree as a whole.
  for (const button of document.querySelectorAll("[data-tree]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      for (const branch of document.querySelectorAll("#browse details")) branch.open = button.dataset.tree === "open";
    });
  }

  // A picture opened: its thumbnail enlarged and everything known about it.
  const viewer = document.querySelector("#viewer");
  const show = (figure) => {
    viewer.current = figure;
    const holder = viewer.querySelector(".shown");
    const facts = viewer.querySelector("dl");
    const image = figure.querySelector("img, .none");
    const copy = image.cloneNode(true);
    copy.removeAttribute("data-key");
    copy.removeAttribute("loading");
    holder.replaceChildren(copy);
    facts.replaceChildren(...figure.querySelector("dl").cloneNode(true).children);
  };
  const beside = (step) => {
    const figures = [...viewer.current.closest(".pictures").querySelectorAll("figure")];
    const next = figures[figures.indexOf(viewer.current) + step];
    if (next) show(next);
  };
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("button.open");
    if (opener) { show(opener.closest("figure")); viewer.showModal(); viewer.scrollTop = 0; }
  });
  viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });
  viewer.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight") beside(1);
    if (event.key === "ArrowLeft") beside(-1);
  });
  for (const button of viewer.querySelectorAll("[data-step]")) {
    button.addEventListener("click", () => beside(Number(button.dataset.step)));
  }

  // Wherever a link points, what holds it is opened.
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();
})();
