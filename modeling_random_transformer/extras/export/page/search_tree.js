// Draws the candidates of a beam search: a column for each step, the best candidate at the top. A selected candidate is
// explained below, with its cross-attention. A script without imports: the explorer contains it, the page of an export
// loads it. All texts are inserted as text, never as HTML.
//
// drawSearch(container, nodes, source): nodes are those of `record_search` in inspection/beam_search.py, with the text of
// each token; source is the list of the source tokens.
"use strict";

const drawSearch = (() => {
  const ROW = 34, GAP = 26, HEIGHT = 26;
  const LOOKS = {
    kept: { fill: "#dcebf7", stroke: "#1a5f9a", text: "#1d2733" },
    finished: { fill: "#d8f0df", stroke: "#2c7a47", text: "#1d2733" },
    discarded: { fill: "#fff", stroke: "#8a97a3", text: "#51606f" },
  };
  const REASONS = {
    kept: "Kept: it is one of the best that the next step continues.",
    finished: "Finished.",
    low: "Discarded: as many better candidates as there are beams are continued.",
    late: "Discarded: it ends here, but as many better candidates of this step as there are beams exist.",
    displaced: "Discarded: it ends here, but better translations were finished.",
    stopped: "Discarded: the search ended at this step.",
  };
  const look = (node) => LOOKS[node.status] || LOOKS.discarded;

  function svg(name, attributes, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  function html(name, className, ...children) {
    const node = document.createElement(name);
    node.className = className;
    node.append(...children);
    return node;
  }

  const shortened = (text) => ([...text].length > 12 ? `${[...text].slice(0, 11).join("")}…` : text);
  const label = (node) => (node.place === null ? "" : `${node.place + 1}. `) + shortened(node.token);

  // The candidates from the first token to this one.
  function path(nodes, node) {
    return node.parent === null ? [] : [...path(nodes, nodes[node.parent]), node];
  }

  // The left edge and the width of each column.
  function columns(nodes) {
    const widths = [];
    for (const node of nodes) widths[node.depth] = Math.max(widths[node.depth] || 40, 18 + 8 * [...label(node)].length);
    const lefts = widths.map((_, depth) => widths.slice(0, depth).reduce((sum, width) => sum + width + GAP, 2));
    return { widths, lefts };
  }

  function explain(nodes, node) {
    if (node.parent === null) return ["The start of every hypothesis."];
    const text = path(nodes, node).map((one) => one.token).join("").replaceAll("␣", " ");
    const lines = [
      `“${text.trim()}”: candidate ${node.rank + 1} of step ${node.depth}.`,
      `log p of the last token ${node.log_probability.toFixed(3)}, sum of all tokens ${node.total.toFixed(3)}`
        + (node.score === null ? "." : `, score ${node.score.toFixed(4)} (the sum divided by a power of the length).`),
      REASONS[node.status] + (node.place === null ? "" : ` Place ${node.place + 1} among the translations, by its score.`),
    ];
    return lines;
  }

  return function draw(container, nodes, source) {
    const { widths, lefts } = columns(nodes);
    const best = new Set(path(nodes, nodes.find((node) => node.place === 0)).map((node) => node.index));
    const middle = (node) => 2 + node.rank * ROW + HEIGHT / 2;
    const edges = nodes.slice(1).map((node) => {
      const [from, parent] = [lefts[node.depth - 1] + widths[node.depth - 1], nodes[node.parent]];
      const points = [[from, middle(parent)], [from + GAP / 2, middle(parent)], [from + GAP / 2, middle(node)], [lefts[node.depth], middle(node)]];
      const [a, b, c, d] = points.map((point) => point.join(" "));
      const onBest = best.has(node.index), kept = LOOKS[node.status];
      return svg("path", { d: `M${a} C${b} ${c} ${d}`, fill: "none", stroke: onBest ? "#c2660a" : kept ? "#5c6b7a" : "#c9d3dc", "stroke-width": onBest ? 3 : 1 });
    });
    const boxes = nodes.map((node) => {
      const { fill, stroke, text } = look(node);
      const frame = { x: lefts[node.depth], y: middle(node) - HEIGHT / 2, width: widths[node.depth], height: HEIGHT, rx: 6, fill, stroke };
      if (!LOOKS[node.status]) frame["stroke-dasharray"] = "4 3";
      const place = { x: lefts[node.depth] + widths[node.depth] / 2, y: middle(node) + 4.5, "text-anchor": "middle", "font-size": 13, fill: text };
      const words = svg("text", place, label(node));
      return svg("g", { role: "button", tabindex: -1, cursor: "pointer", "aria-label": explain(nodes, node).join(" ") },
        svg("title", {}, explain(nodes, node).join("\n")), svg("rect", frame), words);
    });
    const last = widths.length - 1;
    const size = { width: lefts[last] + widths[last] + 4, height: (Math.max(...nodes.map((node) => node.rank)) + 1) * ROW };
    const tree = html("div", "scroll", svg("svg", { ...size, role: "group", "aria-label": "candidates of the search" }, ...edges, ...boxes));
    const details = html("div", "");
    details.setAttribute("aria-live", "polite");
    const layer = html("select", "");
    const layers = nodes[0].attention.length;
    layer.append(...Array.from({ length: layers }, (_, i) => new Option(String(i), i, i === layers - 1, i === layers - 1)));
    const controls = html("label", "controls", "Cross-attention of layer ", layer);
    const tokens = html("div", "tokens");
    let chosen = nodes.find((node) => node.place === 0);

    function select(node, focus) {
      boxes[chosen.index].setAttribute("tabindex", -1);
      boxes[chosen.index].querySelector("rect").setAttribute("stroke-width", 1);
      chosen = node;
      boxes[node.index].setAttribute("tabindex", 0);
      boxes[node.index].querySelector("rect").setAttribute("stroke-width", 3);
      if (focus) boxes[node.index].focus();
      details.replaceChildren(...explain(nodes, node).map((line) => html("p", "hint", line)));
      // The token was predicted while its parent was continued.
      const weights = node.parent === null ? source.map(() => 0) : nodes[node.parent].attention[layer.value];
      tokens.replaceChildren(...source.map((token, i) => {
        const chip = html("span", "token", token);
        chip.style.background = `rgba(26, 95, 154, ${weights[i]})`;
        chip.style.color = weights[i] > 0.6 ? "#fff" : "#1d2733";
        chip.title = weights[i].toFixed(4);
        return chip;
      }));
    }

    const neighbors = {
      ArrowLeft: (node) => nodes[node.parent],
      ArrowRight: (node) => nodes.find((one) => one.parent === node.index),
      ArrowUp: (node) => nodes.find((one) => one.depth === node.depth && one.rank === node.rank - 1),
      ArrowDown: (node) => nodes.find((one) => one.depth === node.depth && one.rank === node.rank + 1),
    };
    boxes.forEach((box, i) => {
      box.addEventListener("click", () => select(nodes[i], true));
      box.addEventListener("keydown", (event) => {
        const next = neighbors[event.key] && neighbors[event.key](nodes[i]);
        if (!next) return;
        event.preventDefault();
        select(next, true);
      });
    });
    layer.addEventListener("change", () => select(chosen, false));
    container.replaceChildren(tree, details, controls, tokens);
    select(chosen, false);
  };
})();
