// Greedy search and beam search over the steps of a decoder, with the results of generate() in transformers (of beam
// search with renormalize_logits=True).
//
// step(tokens, parents) computes one step: the last token of each beam, and the beam of the previous step that each one
// continues. It returns the logits of the next token, one Float32Array [vocab_size] per beam.
//
// options: start, ends (a Set), first (a forced first token or null), suppressed (an array of sequences of tokens that are
// never completed), minNewTokens (before an end), noRepeatNgramSize (0 for none), maxNewTokens; for beam search also
// numBeams, lengthPenalty and patience.

export async function greedySearch(step, options) {
  const tokens = [];
  let last = options.start;
  while (tokens.length < options.maxNewTokens) {
    const [logits] = await step([last], [0]);
    last = tokens.length === 0 && options.first !== null ? options.first : argmax(forbid(logits, tokens, options));
    tokens.push(last);
    if (options.ends.has(last)) break;
  }
  return tokens;
}

// Stops when numBeams · patience hypotheses have finished, as with early_stopping=True. Returns the tokens of the best one, and
// all candidates of the search, as `record_search` in inspection/beam_search.py: `row` is the beam that continues one.
export async function beamSearch(step, options) {
  const { numBeams, maxNewTokens, ends } = options;
  const kept = Math.max(2, 1 + ends.size) * numBeams; // at least numBeams of them do not end
  const root = { tokens: [], last: options.start, parent: 0, score: 0 };
  const nodes = [node(root, null, 0)];
  let beams = [Object.assign(root, { node: nodes[0] })];
  const limit = Math.round(numBeams * options.patience);
  let finished = []; // the best numBeams of them
  let count = 0;
  for (let length = 1; length <= maxNewTokens && count < limit; length++) {
    const logits = await step(beams.map((beam) => beam.last), beams.map((beam) => beam.parent));
    const candidates = continuations(beams, logits, length === 1 ? options.first : null, kept, options);
    const ended = candidates.map((candidate) => length === maxNewTokens || ends.has(candidate.last));
    for (const [rank, candidate] of candidates.entries()) {
      candidate.node = node(candidate, beams[candidate.parent].node, rank);
      candidate.node.index = nodes.push(candidate.node) - 1;
      if (!ended[rank]) continue;
      const score = candidate.score / length ** options.lengthPenalty;
      if (ends.has(candidate.last)) Object.assign(candidate.node, { score, status: rank < numBeams ? "displaced" : "late" });
      if (rank >= numBeams) continue;
      finished.push({ tokens: candidate.tokens, score, node: candidate.node });
      count++;
    }
    finished = best(finished, numBeams);
    beams = candidates.filter((_, rank) => !ended[rank]).slice(0, numBeams);
    beams.forEach((beam, row) => Object.assign(beam.node, { row, status: "kept" }));
  }
  const last = nodes.filter(({ depth, status }) => depth === nodes.at(-1).depth && ["kept", "low"].includes(status));
  last.forEach((one) => Object.assign(one, { row: null, status: "stopped" }));
  finished.forEach((one, place) => Object.assign(one.node, { place, score: one.score, status: "finished" }));
  return { tokens: finished[0].tokens, nodes };
}

// A candidate for `drawSearch`.
function node({ tokens, last, score }, parent, rank) {
  return {
    index: 0, parent: parent && parent.index, depth: tokens.length, rank, id: last, log_probability: parent ? score - parent.total : 0,
    total: score, status: parent ? "low" : "kept", score: null, place: null, row: parent ? null : 0, attention: null,
  };
}

// The `count` best continuations of all beams by one token, the best first.
function continuations(beams, logits, forced, count, options) {
  const candidates = beams.flatMap((beam, parent) => {
    if (forced !== null) return [{ parent, token: forced, score: beam.score }];
    const scores = forbid(logits[parent], beam.tokens, options);
    const normalizer = logSumExp(scores);
    return largest(scores, count).map((token) => ({ parent, token, score: beam.score + scores[token] - normalizer }));
  });
  return best(candidates, count).map(({ parent, token, score }) => ({
    tokens: [...beams[parent].tokens, token], last: token, parent, score,
  }));
}

// Set the logits of tokens that must not follow the generated tokens to -Infinity.
function forbid(logits, generated, { start, ends, suppressed, minNewTokens, noRepeatNgramSize }) {
  const tokens = [start, ...generated];
  const ngrams = noRepeatNgramSize > 0 ? tokens.map((_, i) => tokens.slice(i, i + noRepeatNgramSize)) : [];
  const complete = ngrams.filter((ngram) => ngram.length === noRepeatNgramSize);
  for (const sequence of [...suppressed, ...complete]) {
    const before = sequence.slice(0, -1);
    if (before.every((token, i) => token === tokens[tokens.length - before.length + i])) logits[sequence.at(-1)] = -Infinity;
  }
  if (generated.length < minNewTokens) for (const end of ends) logits[end] = -Infinity;
  return logits;
}

function best(items, count) {
  return items.filter(({ score }) => score > -Infinity).sort((a, b) => b.score - a.score).slice(0, count);
}

function argmax(values) {
  let index = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[index]) index = i;
  return index;
}

// The indices of the `count` largest values, in descending order.
function largest(values, count) {
  const indices = [];
  for (let i = 0; i < values.length; i++) {
    if (indices.length === count && values[i] <= values[indices[count - 1]]) continue;
    let place = indices.length;
    while (place > 0 && values[indices[place - 1]] < values[i]) place--;
    indices.splice(place, 0, i);
    if (indices.length > count) indices.pop();
  }
  return indices;
}

export function logSumExp(values) {
  const highest = values[argmax(values)];
  return highest + Math.log(values.reduce((sum, value) => sum + Math.exp(value - highest), 0));
}
