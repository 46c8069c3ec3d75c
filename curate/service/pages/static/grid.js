// A grid of samples that scrolls on: it takes the place of the page's tiles if there are more. Few nodes are reused for
// all cells. Cells have one size, so that a cell's place tells its sample. Works by keyboard as a listbox.

const list = document.querySelector("ul.grid[data-more]");
const GAP = 12, TEXT = 46, LEAST = 136; // pixels: between cells, of a cell's lines, of its width
const AHEAD = 600; // samples that are loaded beyond the last visible one
const SETTLE = 120; // milliseconds without scrolling until images are asked for
const TALLEST = 8e6; // pixels, beyond which browsers do not scroll exactly

if (list) start(list);

function start(list) {
  const base = list.dataset.base, suffix = list.dataset.suffix, total = Number(list.dataset.total) || 0;
  const items = [...list.querySelectorAll(".tile")].map((tile) => ({
    href: tile.getAttribute("href"), src: tile.querySelector("img")?.getAttribute("src") ?? "",
    texts: ["name", "reason", "note"].map((part) => tile.querySelector(`[data-part=${part}]`)?.textContent ?? ""),
  }));
  let more = list.dataset.more, loading = false, active = 0, frame = 0, settled = 0;
  let columns = 1, width = LEAST, height = LEAST, pool = [];

  const box = element("div", "scroller"), inner = element("div", "scrolled");
  const status = document.querySelector("#searched");
  Object.entries({ role: "listbox", tabindex: "0", "aria-label": list.getAttribute("aria-label") }).forEach((one) => box.setAttribute(...one));
  box.classList.toggle("blurred", list.classList.contains("blurred"));
  box.append(inner);
  list.replaceWith(box);
  document.querySelector(".pager")?.remove();

  const count = () => (more ? Math.max(total, items.length + 1) : items.length);
  const rows = () => Math.ceil(count() / columns);
  const scale = () => Math.max(1, (rows() * height) / TALLEST);

  function element(name, style) {
    const made = document.createElement(name);
    made.className = style;
    return made;
  }

  function cell() {
    const node = element("a", "tile"), thumb = element("span", "thumb"), image = element("img", "");
    const texts = [element("bdi", "tile-name"), element("small", "wrong"), element("small", "")];
    Object.assign(node, { tabIndex: -1, id: `cell-${pool.length}`, role: "option" });
    Object.assign(image, { alt: "", decoding: "async" });
    thumb.append(image);
    node.append(thumb, ...texts);
    inner.append(node);
    return { node, image, texts, index: -1, item: null };
  }

  function layout() {
    columns = Math.max(2, Math.floor((box.clientWidth + GAP) / (LEAST + GAP)));
    width = (box.clientWidth - GAP * (columns - 1)) / columns;
    height = width + TEXT + GAP;
    const wanted = (Math.ceil(box.clientHeight / height) + 2) * columns;
    while (pool.length < wanted) pool.push(cell());
    for (const one of pool) { one.index = -1; one.node.style.width = `${width}px`; one.image.parentNode.style.height = `${width}px`; }
    draw();
  }

  function draw() {
    frame = 0;
    inner.style.height = `${(rows() * height) / scale()}px`;
    const top = box.scrollTop * scale(), first = Math.floor(top / height) * columns;
    for (let index = first; index < first + pool.length; index++) {
      const one = pool[index % pool.length];
      one.node.hidden = index >= count();
      if (!one.node.hidden) fill(one, index, box.scrollTop + Math.floor(index / columns) * height - top);
    }
    const current = pool[active % pool.length];
    if (current.index === active) box.setAttribute("aria-activedescendant", current.node.id);
    else box.removeAttribute("aria-activedescendant");
    clearTimeout(settled);
    settled = setTimeout(images, SETTLE);
    if (more && items.length < first + pool.length + AHEAD) load();
  }

  function fill(one, index, top) {
    one.node.style.transform = `translate(${(index % columns) * (width + GAP)}px, ${top}px)`;
    one.node.setAttribute("aria-selected", index === active);
    if (one.index === index && one.item) return;
    Object.assign(one, { index, item: items[index] ?? null });
    one.image.removeAttribute("src");
    one.node.setAttribute("aria-posinset", index + 1);
    one.node.setAttribute("aria-setsize", more && !total ? -1 : count());
    if (one.item) one.node.href = one.item.href; else one.node.removeAttribute("href");
    one.texts.forEach((text, place) => { text.textContent = one.item?.texts[place] ?? (place ? "" : "…"); });
  }

  function images() {
    for (const one of pool) if (!one.node.hidden && one.item?.src && !one.image.hasAttribute("src")) one.image.src = one.item.src;
  }

  async function load() {
    if (loading) return;
    loading = true;
    try {
      const answer = await fetch(more, { headers: { Accept: "application/json" }, redirect: "manual" });
      if (!answer.ok) throw new Error(String(answer.status));
      const found = await answer.json();
      for (const [shard, row, key, ...texts] of found.tiles) {
        const src = found.pixels ? `${base}/thumbnails/${encodeURIComponent(found.shards[shard])}/${row}${suffix}${suffix ? "&" : "?"}side=160` : "";
        items.push({ href: `${base}/samples/${encodeURIComponent(key)}${suffix}`, src, texts });
      }
      more = found.next;
      status.textContent = found.searched;
    } catch {
      status.textContent = "Loading stopped: no connection. Scroll to try again.";
      return;
    } finally { loading = false; }
    draw();
  }

  function go(index) {
    active = Math.max(0, Math.min(index, count() - 1));
    const top = Math.floor(active / columns) * height, seen = box.scrollTop * scale();
    if (top < seen) box.scrollTop = top / scale();
    else if (top + height > seen + box.clientHeight) box.scrollTop = (top + height - box.clientHeight) / scale();
    draw();
  }

  box.addEventListener("scroll", () => { frame ||= requestAnimationFrame(draw); }, { passive: true });
  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(box.clientHeight / height)) * columns;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && items[active]) location.assign(items[active].href);
    else if (event.key in steps && !event.ctrlKey && !event.metaKey && !event.altKey) go(active + steps[event.key]);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(layout).observe(box);
}
