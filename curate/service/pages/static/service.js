// What the pages gain with JavaScript: live progress, times in the reader's zone, copy buttons. Every page works without.
// Elements with data-live="URL" are replaced by those of the same id in the fragment at that URL, which the server
// renders. Nothing here builds HTML from data.

const LIVE_EVERY = 2000; // milliseconds between two looks while events arrive
const POLL_EVERY = 5000; // without an event stream
const SILENT_AFTER = 15000; // a stream that says nothing for so long is not enough
const KINDS = ["message", "state", "gap", "end"]; // of server-sent events; the engine's are messages

const page = document;
const served = new Map(); // id of a live element -> its HTML as the server sent it

// --- times ----------------------------------------------------------------------------------------------------------

const FORMS = {
  minute: new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" }),
  year: new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" }),
  clock: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }),
};

function localTimes(root) {
  for (const time of root.querySelectorAll("time[data-form]")) {
    const value = new Date(time.dateTime);
    const old = time.dataset.form === "minute" && value.getFullYear() !== new Date().getFullYear();
    time.title = `${time.dateTime} (UTC)`;
    time.textContent = FORMS[old ? "year" : time.dataset.form].format(value);
  }
}

// --- small things -----------------------------------------------------------------------------------------------------

function prepare(root) {
  localTimes(root);
  if (navigator.clipboard) for (const button of root.querySelectorAll("[data-copy]")) button.hidden = false;
}

page.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    try {
      await navigator.clipboard.writeText(copy.dataset.copy);
      copy.textContent = "Copied";
    } catch { copy.textContent = "Not allowed"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  }
  const line = event.target.closest("[data-line]");
  const editor = page.querySelector("#recipe");
  if (line && editor instanceof HTMLTextAreaElement) {
    event.preventDefault();
    toLine(editor, Number(line.dataset.line));
  }
  for (const menu of page.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

function toLine(editor, number) {
  const lines = editor.value.split("\n");
  const start = lines.slice(0, number - 1).join("\n").length + (number > 1 ? 1 : 0);
  editor.focus();
  editor.setSelectionRange(start, start + (lines[number - 1] ?? "").length);
  editor.scrollTop = (number - 4) * parseFloat(getComputedStyle(editor).lineHeight);
}

page.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && page.querySelector(".menu[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});

// One click submits once; the page says that it works.
page.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) { event.preventDefault(); return; }
  form.dataset.sent = "1";
  const busy = form.hasAttribute("data-busy") && page.querySelector("#busy");
  if (busy) busy.hidden = false;
});
addEventListener("pageshow", () => {
  for (const form of page.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});

// --- live -------------------------------------------------------------------------------------------------------------

const connection = page.querySelector("#connection");

function tell(what) {
  connection.hidden = !what;
  for (const part of connection.querySelectorAll("[data-when]")) part.hidden = part.dataset.when !== what;
}

function atEnd(list) {
  return list.scrollHeight - list.scrollTop - list.clientHeight < 24;
}

// Replaces an element unless the reader is using it; keeps what is open, scrolled and focused.
function replace(old, fresh) {
  if (served.get(old.id) === fresh.outerHTML) return;
  if (old.querySelector(".menu[open], form:focus-within") || selecting(old)) return;
  served.set(old.id, fresh.outerHTML);
  const open = [...old.querySelectorAll("details[id]")].map((one) => [one.id, one.open]);
  const scrolled = [...old.querySelectorAll("[id], [data-follow]")]
    .filter((one) => one.scrollTop || one.scrollLeft || one.hasAttribute("data-follow"))
    .map((one) => [one.id, one.scrollTop, one.scrollLeft, one.hasAttribute("data-follow") && atEnd(one)]);
  const focused = old.contains(page.activeElement) && page.activeElement.id;
  const node = page.importNode(fresh, true);
  prepare(node);
  announce(node);
  old.replaceWith(node);
  for (const [id, state] of open) if (page.getElementById(id)) page.getElementById(id).open = state;
  for (const [id, top, left, follow] of scrolled) {
    const one = id ? page.getElementById(id) : node.querySelector("[data-follow]");
    if (one) one.scrollTo(left, follow ? one.scrollHeight : top);
  }
  if (focused) page.getElementById(focused)?.focus({ preventScroll: true });
}

// A live region has to stay in the page, so that screen readers notice its new text.
function announce(node) {
  const text = node.querySelector("[data-announce]")?.textContent;
  const region = page.querySelector("#announcer");
  if (text && region && region.textContent !== text) region.textContent = text;
}

function selecting(element) {
  const selection = getSelection();
  return selection && !selection.isCollapsed && selection.containsNode(element, true);
}

function visible(element) {
  const box = element.getBoundingClientRect();
  return box.bottom > -200 && box.top < innerHeight + 200;
}

// Elements that may still change: the server names no URL once they are final.
function changing() {
  return [...page.querySelectorAll("[data-live]")].filter((one) => one.dataset.live);
}

let looking = false, owed = false; // `owed`: the last look, which must not be left out

async function look(everything = false) {
  if (looking) { owed ||= everything; return; }
  if (page.hidden && !everything) return;
  looking = true;
  const parts = changing().filter((one) => everything || visible(one));
  const urls = new Set(parts.map((one) => one.dataset.live));
  try {
    for (const url of urls) {
      const answer = await fetch(url, { headers: { Accept: "text/html" }, redirect: "manual" });
      if (answer.type === "opaqueredirect" || answer.status === 401) { stop(); tell("ended"); return; }
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of fresh.querySelectorAll("body > [id]")) {
        const old = page.getElementById(part.id);
        if (old) replace(old, part);
      }
    }
    tell("");
  } catch { tell("lost"); } finally { looking = false; }
  if (owed) { owed = false; await look(true); }
}

let source, timer, last = 0, ended = false; // `last`: when the stream of events spoke; `ended`: it has no more

function stop() {
  source?.close();
  clearInterval(timer);
}

function live() {
  const parts = changing();
  if (!parts.length) return;
  for (const part of parts) served.set(part.id, part.outerHTML);
  const events = page.body.dataset.events;
  const every = Number(parts.find((one) => one.dataset.every)?.dataset.every) * 1000 || POLL_EVERY;
  if (events) follow(events);
  timer = setInterval(() => {
    if (!changing().length) stop();
    else if (Date.now() - last > (source && !ended ? SILENT_AFTER : 0)) look(ended);
  }, every);
  page.addEventListener("visibilitychange", () => { if (!page.hidden) look(); });
  addEventListener("offline", () => tell("lost"));
  addEventListener("online", () => look());
}

// At most one look in two seconds, however many events arrive.
function follow(events) {
  let waiting = 0;
  source = new EventSource(events);
  const soon = () => {
    last = Date.now();
    if (!waiting) waiting = setTimeout(() => { waiting = 0; look(); }, LIVE_EVERY);
  };
  for (const kind of KINDS) source.addEventListener(kind, (event) => { if (event instanceof MessageEvent) soon(); });
  source.addEventListener("end", () => { ended = true; source.close(); page.querySelector("#said")?.remove(); look(true); });
  source.addEventListener("error", () => { last = 0; }); // polling continues, and tells if the service does not answer
}

// --- sliders --------------------------------------------------------------------------------------------------------

// A slider asks for the fragments at data-slides as it moves, and for that at data-border once it rests.
async function fetched(url) {
  const answer = await fetch(url, { headers: { Accept: "text/html" }, redirect: "manual" });
  if (!answer.ok) throw new Error(String(answer.status));
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of fresh.querySelectorAll("body > [id]")) {
    const old = page.getElementById(part.id);
    if (old) replace(old, part);
  }
}

for (const slider of page.querySelectorAll("[data-slides]")) {
  let asking = false, resting = 0;
  const named = (url) => { const found = new URL(url, location.href); found.searchParams.set("edge", slider.value); return found; };
  const slide = async () => {
    if (asking) return;
    asking = true;
    let shown;
    try {
      while (shown !== slider.value) { shown = slider.value; await fetched(named(slider.dataset.slides)); }
      const at = page.querySelector("#threshold-rows [data-at]")?.dataset.at;
      slider.setAttribute("aria-valuetext", at);
      page.querySelector("#at").value = at;
      const address = new URL(location.href);
      address.searchParams.delete("edge");
      for (const field of slider.form.querySelectorAll("input[type=hidden]")) address.searchParams.set(field.name, field.value);
      address.searchParams.set("at", at);
      history.replaceState(null, "", address);
      tell("");
    } catch { tell("lost"); } finally { asking = false; }
  };
  slider.form.classList.add("live");
  slider.form.querySelector("[data-plain]").hidden = true;
  slider.addEventListener("input", () => {
    slide();
    clearTimeout(resting);
    resting = setTimeout(() => fetched(named(slider.dataset.border)).catch(() => tell("lost")), 200);
  });
}

for (const list of page.querySelectorAll("[data-follow]")) list.scrollTo(0, list.scrollHeight);
live();
prepare(page);
const address = new URL(location.href);
if (address.searchParams.has("said")) { // so that reloading does not repeat it
  address.searchParams.delete("said");
  history.replaceState(null, "", address);
}
const result = page.querySelector("#result");
if (result && result.children.length && location.hash === "#result") result.focus();
