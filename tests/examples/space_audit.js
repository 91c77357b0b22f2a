// Visible texts with a contrast below WCAG AA (4.5:1, 3:1 for large texts), and visible controls without a name.
const parse = (text) => { const [r, g, b, alpha = 1] = text.match(/[\d.]+/g).map(Number); return [r, g, b, alpha]; };
const blend = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat([1]);
const channel = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const isVisible = (element) =>
  element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) &&
  element.getBoundingClientRect().width > 1 && element.getBoundingClientRect().height > 1;

function ancestors(element) {
  const found = [];
  for (let node = element; node; node = node.parentElement) found.push(getComputedStyle(node));
  return found;
}

function contrast(element) {
  const styles = ancestors(element);
  const background = styles.reduceRight((below, style) => blend(parse(style.backgroundColor), below), [255, 255, 255, 1]);
  const opacity = styles.reduce((product, style) => product * Number(style.opacity), 1);
  const [r, g, b, alpha] = parse(styles[0].color);
  const [low, high] = [luminance(blend([r, g, b, alpha * opacity], background)), luminance(background)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

const problems = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  if (!texts.currentNode.textContent.trim() || ["STYLE", "SCRIPT"].includes(element.tagName) || !isVisible(element)) continue;
  const { fontSize, fontWeight } = getComputedStyle(element);
  const isLarge = parseFloat(fontSize) >= 24 || (parseFloat(fontSize) >= 18.66 && Number(fontWeight) >= 700);
  const ratio = contrast(element);
  if (ratio < (isLarge ? 3 : 4.5)) problems.push(`contrast ${ratio.toFixed(2)}: ${texts.currentNode.textContent}`);
}
for (const control of document.querySelectorAll("input, textarea, select, button")) {
  if (!isVisible(control)) continue;
  const labels = [...(control.labels ?? [])].map((label) => label.textContent).join("");
  if (!(control.ariaLabel || labels.trim() || control.textContent.trim())) problems.push(`no name: ${control.outerHTML}`);
}
return [...new Set(problems)];
