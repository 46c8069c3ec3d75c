// The map of a run: up to a million points, drawn with WebGL2. Without it, the image that the server draws is shown.
// Points come in a random order, so that the first ones are a fair sample. A drag moves the finished canvas, which is
// larger than what is seen; the points are drawn again, in slices, once it rests.

const FIRST = 60000, SLICE = 150000; // points drawn in the first frame, and in later ones
const MANY = 300000; // points above which they are small and, if none is faint, not blended: that takes half as long
const MOST_ON_TOUCH = 200000;
const OVERSIZE = 1.5;
const CELLS = 512; // of the index for hovering, per side
const NEAR = 9; // pixels
const DWELL = 125; // milliseconds of rest before a point's image is asked for
const CORNERS = 120; // of a lasso, at most
const BANDS = 64; // of a lasso, by height

const VERTEX = `#version 300 es
in vec2 at; in uint line; in uint alive;
uniform vec2 centre, scale; uniform float size; uniform vec3 colours[16];
out vec4 ink;
void main() {
  gl_Position = vec4((at - centre) * scale, 0, 1);
  gl_PointSize = size;
  ink = vec4(colours[line], alive == 1u ? .85 : .12);
}`;
const FRAGMENT = `#version 300 es
precision highp float;
in vec4 ink; out vec4 colour; uniform float size;
void main() {
  if (size > 2.5 && distance(gl_PointCoord, vec2(.5)) > .5) discard;
  colour = vec4(ink.rgb * ink.a, ink.a);
}`;

const root = document.querySelector("#map");
const canvas = document.createElement("canvas");
const gl = root && canvas.getContext("webgl2", { antialias: false, preserveDrawingBuffer: true });
if (gl) start(); else if (root) still();

function still() {
  const image = root.querySelector("noscript");
  image.outerHTML = image.textContent;
}

async function start() {
  const frame = root.querySelector(".map-frame");
  const overlay = document.createElement("canvas");
  const card = document.querySelector("#map-card");
  const say = document.querySelector("#map-status");
  const answer = await fetch(root.dataset.points);
  if (!answer.ok) return still();
  const bytes = await answer.arrayBuffer();
  const whole = bytes.byteLength / 10;
  const count = matchMedia("(pointer: coarse)").matches ? Math.min(whole, MOST_ON_TOUCH) : whole;
  const xy = new Float32Array(bytes, 0, 2 * whole);
  const line = new Uint8Array(bytes, 8 * whole, whole);
  const alive = new Uint8Array(bytes, 9 * whole, whole);
  const colours = root.dataset.colours.split(" ").map((one) => [1, 3, 5].map((at) => parseInt(one.slice(at, at + 2), 16) / 255));
  const extent = root.dataset.extent.split(" ").map(Number);
  let width = 0, height = 0; // of what is seen, in CSS pixels
  let view = null; // {x, y, scale}: the centre, and pixels per unit
  let drawn = null; // the view that the canvas shows
  let done = 0, uniforms = null, waiting = 0, index = null, mode = "move", lasso = null;

  frame.append(canvas, overlay);
  for (const tool of root.querySelectorAll(".map-tools, .map-help")) tool.hidden = false;
  frame.tabIndex = 0;

  // --- drawing --------------------------------------------------------------------------------------------------------

  function prepare() {
    const program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    ["at", "line", "alive"].forEach((name, place) => gl.bindAttribLocation(program, place, name));
    gl.linkProgram(program);
    gl.useProgram(program);
    [xy, line, alive].forEach((data, place) => {
      gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
      gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
      gl.enableVertexAttribArray(place);
      if (place) gl.vertexAttribIPointer(place, 1, gl.UNSIGNED_BYTE, 0, 0);
      else gl.vertexAttribPointer(0, 2, gl.FLOAT, false, 0, 0);
    });
    if (count <= MANY || alive.includes(0)) gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    uniforms = Object.fromEntries(["centre", "scale", "size", "colours"].map((name) => [name, gl.getUniformLocation(program, name)]));
    gl.uniform3fv(uniforms.colours, new Float32Array(colours.flat()));
  }

  function draw() {
    drawn = { ...view };
    const ratio = Math.min(devicePixelRatio, 2), w = width * OVERSIZE, h = height * OVERSIZE;
    const size = Math.min(10, Math.max(1, (count > MANY ? 1 : count > 30000 ? 2 : 4) * Math.min(1, width / 800) * Math.sqrt(drawn.scale / whole_view().scale)));
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(h * ratio);
      Object.assign(canvas.style, { width: `${w}px`, height: `${h}px`, left: `${(width - w) / 2}px`, top: `${(height - h) / 2}px` });
    }
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.uniform2f(uniforms.centre, drawn.x, drawn.y);
    gl.uniform2f(uniforms.scale, 2 * drawn.scale / w, 2 * drawn.scale / h);
    gl.uniform1f(uniforms.size, size * ratio);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    done = 0;
    root.dataset.drawn = "";
    slice();
    place();
  }

  function slice() {
    const some = Math.min(done ? SLICE : FIRST, count - done);
    if (some > 0) gl.drawArrays(gl.POINTS, done, some);
    done += some;
    if (done >= count) root.dataset.drawn = done;
  }

  // Shows the canvas where the view is now.
  function place() {
    const k = view.scale / drawn.scale;
    canvas.style.transform = `translate(${(drawn.x - view.x) * view.scale}px, ${(view.y - drawn.y) * view.scale}px) scale(${k})`;
    marks();
  }

  function moved(rest = 120) {
    place();
    clearTimeout(waiting);
    waiting = setTimeout(draw, rest);
  }

  (function tick() {
    if (drawn && done < count && !held.size) slice();
    requestAnimationFrame(tick);
  })();

  function whole_view() {
    const [left, bottom, right, top] = extent;
    return { x: (left + right) / 2, y: (bottom + top) / 2, scale: Math.min(width / (right - left), height / (top - bottom)) };
  }

  const toScreen = ([x, y]) => [width / 2 + (x - view.x) * view.scale, height / 2 - (y - view.y) * view.scale];
  const toData = ([px, py]) => [view.x + (px - width / 2) / view.scale, view.y - (py - height / 2) / view.scale];

  // Rings around what a search found, the region that is chosen, and the lasso.
  function marks() {
    const ratio = Math.min(devicePixelRatio, 2), pen = overlay.getContext("2d");
    overlay.width = width * ratio;
    overlay.height = height * ratio;
    pen.scale(ratio, ratio);
    pen.strokeStyle = getComputedStyle(overlay).color;
    pen.lineWidth = 2;
    for (const mark of document.querySelectorAll("#found [data-x]")) {
      const [px, py] = toScreen([Number(mark.dataset.x), Number(mark.dataset.y)]);
      pen.beginPath();
      pen.arc(px, py, 7, 0, 7);
      pen.stroke();
    }
    const region = lasso ?? corners(document.querySelector("#selection").dataset.within ?? "");
    if (region.length < 2) return;
    pen.beginPath();
    for (const corner of region) pen.lineTo(...toScreen(corner));
    pen.closePath();
    pen.stroke();
  }

  const corners = (text) => text.split(" ").filter(Boolean).map((pair) => pair.split(",").map(Number));

  // --- moving -----------------------------------------------------------------------------------------------------------

  const held = new Map(); // pointers that are down -> where

  function zoom(factor, [px, py] = [width / 2, height / 2]) {
    const before = toData([px, py]);
    view.scale = Math.min(Math.max(view.scale * factor, whole_view().scale / 2), whole_view().scale * 5000);
    const after = toData([px, py]);
    view.x += before[0] - after[0];
    view.y += before[1] - after[1];
    moved();
  }

  function local(event) {
    const box = frame.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  frame.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    frame.setPointerCapture(event.pointerId);
    held.set(event.pointerId, local(event));
    card.hidden = true;
    if (mode === "lasso" && held.size === 1) lasso = [toData(local(event))];
    else lasso = null;
  });

  frame.addEventListener("pointermove", (event) => {
    const now = local(event), before = held.get(event.pointerId);
    if (!before) { hover(now); return; }
    if (lasso) {
      lasso.push(toData(now));
      held.set(event.pointerId, now);
      marks();
      return;
    }
    const other = [...held].find(([id]) => id !== event.pointerId)?.[1];
    held.set(event.pointerId, now);
    if (other) {
      const far = ([x, y]) => Math.hypot(x - other[0], y - other[1]);
      zoom(far(now) / Math.max(far(before), 1), other);
    } else {
      view.x -= (now[0] - before[0]) / view.scale;
      view.y += (now[1] - before[1]) / view.scale;
      clearTimeout(waiting);
      place();
    }
  });

  function released(event) {
    if (!held.delete(event.pointerId)) return;
    const region = lasso;
    lasso = null;
    if (region) choose(region);
    else if (!held.size) moved(0);
  }
  frame.addEventListener("pointerup", released);
  frame.addEventListener("pointercancel", released);
  frame.addEventListener("pointerleave", () => { clearTimeout(resting); });
  frame.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 300), local(event));
  }, { passive: false });

  const step = (x, y) => { view.x += x * width / 8 / view.scale; view.y += y * height / 8 / view.scale; moved(); };
  const whole_again = () => { view = whole_view(); moved(0); };
  const KEYS = {
    ArrowLeft: () => step(-1, 0), ArrowRight: () => step(1, 0), ArrowUp: () => step(0, 1), ArrowDown: () => step(0, -1),
    "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: whole_again, s: seen,
    l: () => use(mode === "lasso" ? "move" : "lasso"), Escape: () => { card.hidden = true; use("move"); },
  };
  frame.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });

  function use(what) {
    mode = what;
    frame.dataset.mode = mode;
    root.querySelector("[data-tool=lasso]").setAttribute("aria-pressed", String(mode === "lasso"));
  }
  const TOOLS = { lasso: KEYS.l, in: () => zoom(1.5), out: () => zoom(1 / 1.5), whole: whole_again, seen };
  root.addEventListener("click", (event) => { TOOLS[event.target.closest("[data-tool]")?.dataset.tool]?.(); });

  // --- choosing ---------------------------------------------------------------------------------------------------------

  function seen() {
    choose([[0, 0], [width, 0], [width, height], [0, height]].map(toData));
  }

  function inside(region) {
    const began = performance.now();
    const xs = region.map(([x]) => x), ys = region.map(([, y]) => y);
    const left = Math.min(...xs), right = Math.max(...xs), low = Math.min(...ys), high = Math.max(...ys);
    const sides = region.map((a, at) => [...a, ...region[(at + 1) % region.length]]);
    const band = (y) => Math.floor((y - low) / (high - low) * (BANDS - 1e-9));
    const crossed = Array.from({ length: BANDS }, (_, at) => new Float64Array( // the sides that a band of y meets
      sides.filter(([, y1, , y2]) => band(Math.min(y1, y2)) <= at && band(Math.max(y1, y2)) >= at).flat()));
    let found = 0;
    for (let point = 0; point < whole; point++) {
      const x = xy[2 * point], y = xy[2 * point + 1];
      if (x < left || x > right || y < low || y > high) continue;
      const flat = crossed[band(y)];
      let odd = 0;
      for (let at = 0; at < flat.length; at += 4) {
        const y1 = flat[at + 1], y2 = flat[at + 3];
        if ((y1 > y) !== (y2 > y) && x < flat[at] + (y - y1) * (flat[at + 2] - flat[at]) / (y2 - y1)) odd ^= 1;
      }
      found += odd;
    }
    root.dataset.lasso = `${found} ${(performance.now() - began).toFixed(1)}`;
    return found;
  }

  async function choose(drawnRegion) {
    const every = Math.ceil(drawnRegion.length / CORNERS);
    const region = drawnRegion.filter((_, at) => at % every === 0).map((corner) => corner.map((one) => Number(one.toPrecision(6))));
    const found = region.length < 3 ? 0 : inside(region);
    if (!found) {
      say.textContent = "No point is inside. Draw around some.";
      marks();
      return;
    }
    say.textContent = `${found.toLocaleString("en")} of ${whole.toLocaleString("en")} points chosen.`;
    await show({ within: region.map((corner) => corner.join(",")).join(" "), cursor: "", drawn: "" });
  }

  // Replaces the parts below the map by those of the page at the new address.
  async function show(query) {
    const url = new URL(location);
    for (const [name, value] of Object.entries(query)) if (value) url.searchParams.set(name, value); else url.searchParams.delete(name);
    const part = document.querySelector("#selection");
    part.dataset.within = url.searchParams.get("within") ?? "";
    marks();
    part.setAttribute("aria-busy", "true");
    const fresh = await fetch(url);
    const text = new DOMParser().parseFromString(await fresh.text(), "text/html");
    const node = text.querySelector("#selection");
    if (!node) { location.assign(url); return; }
    document.querySelector("#selection").replaceWith(node);
    for (const field of document.querySelectorAll("form input[name=within]")) field.value = url.searchParams.get("within") ?? "";
    if (navigator.clipboard) for (const button of node.querySelectorAll("[data-copy]")) button.hidden = false;
    history.replaceState(null, "", url);
    marks();
  }

  // --- hovering ---------------------------------------------------------------------------------------------------------

  let resting = 0, last = -1;

  function built() {
    const [left, bottom, right, top] = extent;
    const cell = (point) => {
      const column = Math.min(CELLS - 1, Math.max(0, Math.floor((xy[2 * point] - left) / (right - left) * CELLS)));
      const row = Math.min(CELLS - 1, Math.max(0, Math.floor((xy[2 * point + 1] - bottom) / (top - bottom) * CELLS)));
      return row * CELLS + column;
    };
    const starts = new Uint32Array(CELLS * CELLS + 1), points = new Uint32Array(count);
    for (let point = 0; point < count; point++) starts[cell(point) + 1]++;
    for (let at = 0; at < CELLS * CELLS; at++) starts[at + 1] += starts[at];
    const next = starts.slice();
    for (let point = 0; point < count; point++) points[next[cell(point)]++] = point;
    return { starts, points };
  }

  function nearest([px, py]) {
    index ??= built();
    const [left, bottom, right, top] = extent;
    const [x, y] = toData([px, py]), reach = NEAR / view.scale;
    const cells = (value, low, size) => Math.min(CELLS - 1, Math.max(0, Math.floor((value - low) / size * CELLS)));
    let best = -1, least = reach * reach;
    for (let row = cells(y - reach, bottom, top - bottom); row <= cells(y + reach, bottom, top - bottom); row++) {
      for (let column = cells(x - reach, left, right - left); column <= cells(x + reach, left, right - left); column++) {
        for (let at = index.starts[row * CELLS + column]; at < index.starts[row * CELLS + column + 1]; at++) {
          const point = index.points[at], far = (xy[2 * point] - x) ** 2 + (xy[2 * point + 1] - y) ** 2;
          if (far < least) { best = point; least = far; }
        }
      }
    }
    return best;
  }

  function hover(at) {
    clearTimeout(resting);
    resting = setTimeout(async () => {
      const point = nearest(at);
      if (point === last && !card.hidden) return;
      last = point;
      card.hidden = true;
      if (point < 0) return;
      const url = new URL(root.dataset.point, location);
      url.searchParams.set("point", point);
      const answer = await fetch(url);
      if (!answer.ok || last !== point) return;
      const text = new DOMParser().parseFromString(await answer.text(), "text/html");
      card.replaceChildren(...text.body.childNodes);
      card.hidden = false;
      const [px, py] = toScreen([xy[2 * point], xy[2 * point + 1]]);
      card.style.left = `${Math.max(0, Math.min(px + 12, width - card.offsetWidth - 4))}px`;
      card.style.top = `${Math.max(0, Math.min(py + 12, height - card.offsetHeight - 4))}px`;
    }, DWELL);
  }

  // --- start ------------------------------------------------------------------------------------------------------------

  canvas.addEventListener("webglcontextlost", (event) => { event.preventDefault(); done = count; });
  canvas.addEventListener("webglcontextrestored", () => { prepare(); draw(); });
  new ResizeObserver(() => {
    const box = frame.getBoundingClientRect();
    if (box.width === width && box.height === height) return;
    [width, height] = [box.width, box.height];
    view ??= whole_view();
    draw();
  }).observe(frame);
  prepare();
  say.textContent = count < whole ? `${count.toLocaleString("en")} of ${whole.toLocaleString("en")} points are drawn.` : "";
}
