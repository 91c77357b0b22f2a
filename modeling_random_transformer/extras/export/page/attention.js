// Draws the weights of the cross-attention: as the colors of the source tokens, and as a table.
// All texts are inserted as text, never as HTML.

const byId = (id) => document.getElementById(id);
const COLOR = [0, 64, 140]; // of weight 1; that of weight 0 is white
const LINEAR = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);

let shown = null; // { source, target, attention }
let chosen = 0; // index of the target token

export function showAttention(result) {
  shown = result;
  chosen = 0;
  const [layers, heads] = result.attention.shape;
  fillSelect(byId("layer"), layers, String(layers - 1)); // the mean of the layers hides where the last one looks
  fillSelect(byId("head"), heads, "all");
  byId("source-tokens").replaceChildren(...result.source.map((token) => element("span", "token", token)));
  byId("target-tokens").replaceChildren(...result.target.map((token, i) => {
    const button = element("button", "token", token);
    button.type = "button";
    button.addEventListener("click", () => choose(i));
    return button;
  }));
  draw();
}

function choose(index) {
  chosen = index;
  drawChosen(weightsOf(byId("layer").value, byId("head").value));
}

function draw() {
  const weights = weightsOf(byId("layer").value, byId("head").value);
  drawTable(weights);
  drawChosen(weights);
}

// The weights of a layer and a head, or the means over "all", as one array [source] for each target token.
function weightsOf(layer, head) {
  const { shape: [layers, heads, targets, sources], values } = shown.attention;
  const selected = (value, count) => (value === "all" ? [...Array(count).keys()] : [Number(value)]);
  const parts = selected(layer, layers).flatMap((l) => selected(head, heads).map((h) => (l * heads + h) * targets));
  return Array.from({ length: targets }, (_, target) => Array.from({ length: sources }, (_, source) =>
    parts.reduce((sum, part) => sum + values[(part + target) * sources + source], 0) / parts.length));
}

function drawChosen(weights) {
  [...byId("source-tokens").children].forEach((token, i) => paint(token, weights[chosen][i]));
  [...byId("target-tokens").children].forEach((token, i) => token.setAttribute("aria-pressed", String(i === chosen)));
  [...byId("weights").tBodies[0].rows].forEach((row, i) => row.classList.toggle("chosen", i === chosen));
}

function drawTable(weights) {
  const head = document.createElement("tr");
  head.append(document.createElement("td"), ...shown.source.map((token) => header(token, "col")));
  const rows = weights.map((row, i) => {
    const line = document.createElement("tr");
    line.append(header(shown.target[i], "row"), ...row.map((weight) => {
      const cell = element("td", "", String(Math.round(100 * weight)));
      paint(cell, weight);
      return cell;
    }));
    return line;
  });
  const top = document.createElement("thead"), body = document.createElement("tbody");
  top.append(head);
  body.append(...rows);
  byId("weights").replaceChildren(top, body);
}

// Set the color for a weight. Black or white text has a contrast of at least 4.5 on every background.
function paint(node, weight) {
  const color = COLOR.map((value) => Math.round(255 + (value - 255) * weight));
  const [red, green, blue] = color.map(LINEAR);
  node.style.backgroundColor = `rgb(${color.join(" ")})`;
  node.style.color = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
  node.title = weight.toFixed(4);
}

function fillSelect(select, count, initial) {
  const value = select.value || initial;
  const options = ["all", ...Array(count).keys()].map((name) => new Option(name === "all" ? "mean" : name, name));
  select.replaceChildren(...options);
  select.value = value;
}

function header(text, scope) {
  const cell = element("th", "", text);
  cell.scope = scope;
  cell.dir = "auto";
  return cell;
}

function element(name, className, text) {
  const node = document.createElement(name);
  node.className = className;
  node.textContent = text;
  return node;
}

byId("layer").addEventListener("change", draw);
byId("head").addEventListener("change", draw);
