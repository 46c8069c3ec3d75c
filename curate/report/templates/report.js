(() => {
  // An image that occurs twice is embedded once; its other places copy the source.
  const sources = new Map();
  for (const image of document.querySelectorAll("img[data-key]")) sources.set(image.dataset.key, image.src);
  for (const image of document.querySelectorAll("img[data-same]")) {
    const source = sources.get(image.dataset.same);
    if (source) { image.src = source; image.hidden = false; }
  }

  // Buttons that open or close the whole cluster tree.
  for (const button of document.querySelectorAll("[data-tree]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      for (const branch of document.querySelectorAll("#browse details")) branch.open = button.dataset.tree === "open";
    });
  }

  // The viewer: an enlarged thumbnail with all its facts.
  const viewer = document.querySelector("#viewer");
  const show = (figure) => {
    viewer.current = figure;
    const holder = viewer.querySelector(".shown");
    const facts = viewer.querySelector("dl");
    const image = figure.querySelector("img, .placeholder");
    const copy = image.cloneNode(true);
    copy.removeAttribute("data-key");
    copy.removeAttribute("loading");
    holder.replaceChildren(copy);
    facts.replaceChildren(...figure.querySelector("dl").cloneNode(true).children);
  };
  const beside = (step) => {
    const figures = [...viewer.current.closest(".images").querySelectorAll("figure")];
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
})();
