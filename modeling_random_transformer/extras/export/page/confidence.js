// The confidence of a translation and its doubtful words, as in inference/confidence.py.
import { logSumExp } from "./search.js";

const COPIED_CHARACTERS = 4;

// The log-probabilities of the tokens of a target, from the logits of a forward pass, [target, vocabulary].
export function logProbabilities(logits, target) {
  const size = logits.length / target.length;
  return target.map((id, i) => {
    const scores = logits.subarray(i * size, (i + 1) * size);
    return scores[id] - logSumExp(scores);
  });
}

// The probability of a good translation. `values` are the log-probabilities of its tokens.
export function confidence(calibration, source, sourceTokens, translation, values) {
  const [sourceLength, length] = [source, translation].map((text) => Math.max([...text].length, 1));
  const mean = average(values);
  const features = [
    mean,
    Math.min(...values),
    Math.sqrt(average(values.map((value) => (value - mean) ** 2))),
    Math.log(values.length),
    Math.log(length / sourceLength),
    Math.log(sourceTokens / sourceLength),
    copiedShare(source, translation),
  ];
  const probability = logistic(calibration.bias, calibration.weights, features);
  const { source_bias, source_weights } = calibration;
  return source_weights.length ? probability * logistic(source_bias, source_weights, features) : probability;
}

// The probability that a logistic regression gives for the features that have a weight.
function logistic(bias, weights, features) {
  const logOdds = weights.reduce((sum, weight, i) => sum + weight * features[i], bias);
  return 1 / (1 + Math.exp(-logOdds));
}

// The share of the parts of four characters of a translation that its source has.
function copiedShare(source, translation) {
  const known = new Set(characterNgrams(source));
  const parts = characterNgrams(translation);
  return parts.filter((part) => known.has(part)).length / Math.max(parts.length, 1);
}

function characterNgrams(text) {
  const characters = [...text.toLowerCase()];
  return characters.slice(COPIED_CHARACTERS - 1).map((_, i) => characters.slice(i, i + COPIED_CHARACTERS).join(""));
}

// The probability of each word: the product of those of its tokens. Tokens of white space and special ones, which have no
// text, are between words.
export function wordProbabilities(texts, values) {
  const words = [];
  let isBetween = true;
  texts.forEach((text, i) => {
    if (isBetween ? text.trim() : /^\s+\S/.test(text)) words.push(1);
    isBetween = !text.trim();
    if (!isBetween) words[words.length - 1] *= Math.exp(values[i]);
  });
  return words;
}

// Nodes for a translation without white space at its ends, with its doubtful words underlined.
export function underlined(text, probabilities, limit) {
  const parts = text.split(/(\s+)/); // every second one is white space
  if (parts.length !== 2 * probabilities.length - 1) return [text];
  return parts.map((part, i) => (i % 2 || probabilities[i / 2] >= limit ? part : underline(part, probabilities[i / 2])));
}

function underline(word, probability) {
  const element = document.createElement("u");
  element.textContent = word;
  element.title = percent(probability);
  return element;
}

export function percent(share) {
  return `${Math.round(100 * share)}%`;
}

function average(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
