(() => {
  const judging = document.querySelector("#judging");
  const pairs = [...judging.querySelectorAll(".pair")];
  if (!pairs.length) return;
  const page = judging.dataset.page, store = `verdicts-${page}`;
  const [progress, save, choices, done] = [".progress", ".save", ".choices", ".done"].map((one) => judging.querySelector(one));
  let verdicts = {}, keeps = true, current = 0;
  try { verdicts = JSON.parse(localStorage.getItem(store)) || {}; } catch { verdicts = {}; }
  for (const id of Object.keys(verdicts)) if (!pairs.some((one) => one.dataset.id === id)) delete verdicts[id];

  const judged = () => pairs.filter((one) => one.dataset.id in verdicts).length;
  const keep = () => {
    try { localStorage.setItem(store, JSON.stringify(verdicts)); } catch { keeps = false; }
    save.querySelector(".note").textContent = keeps ? "Choices are kept in this browser." :
      "This browser does not keep choices: download them before you close the page.";
  };

  // One pair at a time; the mark shows the choice so far.
  const show = (place) => {
    current = Math.min(Math.max(place, 0), pairs.length - 1);
    pairs.forEach((one, number) => { one.hidden = number !== current; });
    const pair = pairs[current], choice = verdicts[pair.dataset.id];
    for (const text of pair.querySelectorAll(".text")) text.classList.toggle("better", text.dataset.side === choice);
    for (const button of choices.querySelectorAll("[data-choice]")) button.setAttribute("aria-pressed", button.dataset.choice === choice);
    choices.querySelector("[data-step='-1']").disabled = current === 0;
    choices.querySelector("[data-step='1']").disabled = current === pairs.length - 1;
    progress.querySelector("progress").value = judged();
    progress.querySelector("span").textContent = `Pair ${current + 1} of ${pairs.length}, ${judged()} judged`;
    done.hidden = judged() < pairs.length;
  };
  const choose = (choice) => {
    verdicts[pairs[current].dataset.id] = choice;
    keep();
    show(current + 1 < pairs.length ? current + 1 : current);
    scrollTo({ top: 0 });
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input")) return;
    if (["0", "1", "2"].includes(event.key)) choose(event.key);
    else if (event.key === "ArrowLeft") show(current - 1);
    else if (event.key === "ArrowRight") show(current + 1);
    else return;
    event.preventDefault();
  });
  choices.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.choice) choose(button.dataset.choice);
    else if (button) show(current + Number(button.dataset.step));
  });

  // The download: choices by pair, which only the key file can interpret.
  save.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = save.elements.name.value.trim();
    const file = new Blob([JSON.stringify({ format: 1, page, name, verdicts }, null, 1)], { type: "application/json" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(file);
    link.download = `verdicts-${page}${name ? `-${name.replace(/[^\p{L}\p{N}]+/gu, "-")}` : ""}.json`;
    link.click();
    URL.revokeObjectURL(link.href);
  });

  for (const part of [progress, save, choices]) part.hidden = false;
  keep();
  const open = pairs.findIndex((one) => !(one.dataset.id in verdicts));
  show(open < 0 ? pairs.length - 1 : open);
})();
