"use strict";
(() => {
  const root = document.documentElement;

  // Theme: the system's until the reader chooses one.
  const button = document.querySelector("#theme");
  const stored = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (stored) { root.dataset.theme = stored; }
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  label();
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* file:// may have no storage */ }
    label();
  });

  // Each explanation opens next to its word.
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

  // Open the sections around the target of a link.
  const reveal = () => {
    let id = "";
    try { id = decodeURIComponent(location.hash.slice(1)); } catch { return; }  // a lone percent sign
    const target = id && document.getElementById(id);
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();
})();
