// The table of heads: sorting, searching, and the sentence that the chosen head sees.
const SVG = "http://www.w3.org/2000/svg";
const ROW = 22, WIDTH = 360, LEFT = 132, RIGHT = 228, LONG = 16;
const at = (id) => document.getElementById(id);
const drawings = JSON.parse(at("drawings").textContent);
const table = at("heads"), rows = [...table.tBodies[0].rows];
const texts = at("texts"), svg = at("drawing"), told = at("told");
let chosen = null;

document.documentElement.classList.add("js");

function make(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  return element;
}

function word(x, y, anchor, text) {
  const short = text.length > LONG ? text.slice(0, LONG - 1) + "…" : text;
  return make("text", { x, y: y + 4, "text-anchor": anchor }, short);
}

function sentence(words, place, own) {
  const parts = [];
  for (let i = 0; i < own.length; i += 2) {
    const key = own[i] < words.length ? `“${words[own[i]]}”` : "a token further on";
    parts.push(`${own[i + 1]} % to ${key}`);
  }
  return `“${words[place]}” gives ${parts.join(", ")}.`;
}

function draw() {
  const shown = drawings[texts.value];
  const name = chosen.dataset.name;
  at("whose").textContent = `Layer ${name.replace(".", ", head ")}`;
  at("does").textContent = chosen.cells[1].firstElementChild.textContent;
  told.textContent = "";
  const lines = shown.heads[name] || [];
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${ROW * shown.words.length + 4}`);
  svg.replaceChildren();
  shown.words.forEach((text, place) => {
    const y = ROW * place + ROW / 2, own = lines[place] || [];
    const group = make("g", { class: "query", tabindex: own.length ? 0 : -1 });
    for (let i = own.length - 2; i >= 0; i -= 2) {
      if (own[i] >= shown.words.length) continue;
      const end = ROW * own[i] + ROW / 2, middle = (LEFT + RIGHT) / 2;
      const d = `M${LEFT + 5} ${y}C${middle} ${y} ${middle} ${end} ${RIGHT - 5} ${end}`;
      const line = make("path", { d, class: i ? "other" : "selected" });
      line.style.setProperty("--p", own[i + 1] / 100);
      group.append(line);
    }
    group.append(make("rect", { x: 0, y: y - ROW / 2, width: LEFT, height: ROW }));
    group.append(word(LEFT, y, "end", text));
    const tell = () => { told.textContent = own.length ? sentence(shown.words, place, own) : ""; };
    group.addEventListener("mouseenter", tell);
    group.addEventListener("focus", tell);
    svg.append(group);
  });
  shown.words.forEach((text, place) => svg.append(word(RIGHT, ROW * place + ROW / 2, "start", text)));
}

function choose(row) {
  for (const each of document.querySelectorAll(".chosen")) each.classList.remove("chosen");
  chosen = row;
  row.classList.add("chosen");
  at(row.dataset.id).classList.add("chosen");
  if (drawings.length) draw();
}

function sort(column, downwards) {
  const key = (row) => row.dataset["k" + column];
  const numbers = column !== "1";
  const order = (a, b) => numbers ? key(a) - key(b) : key(a).localeCompare(key(b));
  rows.sort((a, b) => (downwards ? -1 : 1) * order(a, b));
  table.tBodies[0].append(...rows);
  for (const each of table.tHead.rows[0].cells) {
    const own = each.dataset.column === column;
    each.setAttribute("aria-sort", own ? (downwards ? "descending" : "ascending") : "none");
  }
}

function search() {
  const wanted = at("search").value.toLowerCase();
  let left = 0;
  for (const row of rows) {
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
    left += !row.hidden;
  }
  at("left").textContent = wanted ? `${left} of ${rows.length} heads` : "";
}

for (const each of table.tHead.rows[0].cells) {
  each.firstElementChild.addEventListener("click", () => {
    const column = each.dataset.column, now = each.getAttribute("aria-sort");
    sort(column, now === "none" ? column > "1" : now === "ascending");
    at("sort").value = column;
  });
}
at("sort").addEventListener("change", (event) => sort(event.target.value, event.target.value > "1"));
at("search").addEventListener("input", search);
texts.addEventListener("change", draw);
table.addEventListener("click", (event) => {
  const row = event.target.closest("tbody tr");
  if (!row) return;
  event.preventDefault();
  choose(row);
  history.replaceState(null, "", "#" + row.dataset.id);
  at("sentence").scrollIntoView({ block: "nearest" });
});
addEventListener("hashchange", begin);

function begin() {
  choose(rows.find((row) => "#" + row.dataset.id === location.hash) || rows[0]);
}
begin();
