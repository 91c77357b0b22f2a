// The exported model: tokenizer, ONNX graphs and search.
import * as ort from "./vendor/onnxruntime-web/ort.wasm.bundle.min.js";
import { Tokenizer } from "./vendor/tokenizers/tokenizers.min.js";
import { confidence, logProbabilities, wordProbabilities } from "./confidence.js";
import { beamSearch, greedySearch } from "./search.js";
import { isBlank, splitText, textParts } from "./sentences.js";

// One thread: several need the headers of cross-origin isolation, which static hosts do not send.
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = {
  wasm: new URL("./vendor/onnxruntime-web/ort-wasm-simd-threaded.wasm", import.meta.url).href,
};

export class Translator {
  // Load the files of an export from a folder. Throws an Error if one is missing.
  static async load(folder = new URL("../", import.meta.url)) {
    const [settings, tokenizer, tokenizerConfig, encoder, decoder] = await Promise.all([
      fetchFile(folder, "page.json").then((response) => response.json()),
      fetchFile(folder, "tokenizer.json").then((response) => response.json()),
      fetchFile(folder, "tokenizer_config.json").then((response) => response.json()),
      loadGraph(folder, "encoder.onnx"),
      loadGraph(folder, "decoder.onnx"),
    ]);
    const decoding = new Tokenizer(tokenizer, tokenizerConfig);
    const declared = tokenizer.added_tokens.filter(({ content }) => !settings.control_tokens.includes(content));
    const encoding = new Tokenizer({ ...tokenizer, added_tokens: declared }, tokenizerConfig);
    encoding.model = decoding.model;  // has the ids of all tokens
    return new Translator(settings, encoding, decoding, encoder, decoder);
  }

  // The tokenizer for encoding recognizes no control tokens such as </s>: texts are data.
  constructor(settings, encoding, decoding, encoder, decoder) {
    Object.assign(this, { settings, encoding, decoding, encoder, decoder });
  }

  // The token ids of a text. Throws an Error if nothing of it is visible or if it is too long.
  encode(text) {
    if (isBlank(text)) throw new Error("Enter a sentence.");
    const { ids } = this.encoding.encode(this.settings.prefix + text);
    const limit = this.settings.max_source_tokens;
    if (limit !== null && ids.length > limit) {
      throw new Error(`The sentence must have at most ${limit} tokens, got ${ids.length}.`);
    }
    return ids;
  }

  decode(ids) {
    return this.decoding.decode(ids, {
      skip_special_tokens: true,
      clean_up_tokenization_spaces: this.settings.clean_up_tokenization_spaces,
    });
  }

  // The text of each token with visible spaces; part of a multi-byte character becomes �.
  tokenTexts(ids) {
    return ids.map((id) => this.decoding.decode([id], { clean_up_tokenization_spaces: false })
      .replaceAll(" ", "␣").replaceAll("\n", "⏎") || "∅");
  }

  // Translate a text sentence by sentence. Returns the parts of the translation, the sentences, and for each the result of
  // `translate`. A text without letters, such as a number, has no sentences.
  async translateText(text, options) {
    if (isBlank(text)) throw new Error("Enter a sentence.");
    let { sentences, gaps } = splitText(text, this.settings.source_language);
    if (!sentences.length && !this.settings.keep_without_letters) [sentences, gaps] = [[text], ["", ""]];
    sentences.forEach((sentence) => this.encode(sentence)); // errors before long work
    const results = [];
    for (const sentence of sentences) results.push(await this.translate(sentence, options));
    return { parts: textParts(results.map((result) => result.text), gaps, sentences), sentences, results };
  }

  // The text as the package translates it: white space at its ends, repeated spaces and line breaks are not content.
  withoutExtraSpaces(text) {
    const { normalizer } = this.encoding;
    if (!normalizer) return text;
    let result = normalizer(text).trim();
    if (!this.settings.keep_line_breaks) result = result.replace(/[ \t]*[\r\n]\s*/g, " ");
    return this.settings.keeps_spaces ? result : result.replace(/[ \t]+/g, " ");
  }

  // Translate a sentence: greedy search with one beam, otherwise beam search. Without `maxNewTokens`, the limit depends on
  // the length of the source.
  async translate(text, { numBeams = 1, maxNewTokens = null } = {}) {
    const { settings } = this;
    const source = this.encode(this.withoutExtraSpaces(text));
    const rounded = Math.ceil(source.length / settings.length_step) * settings.length_step;
    const encoded = await this.encodeSource(source);
    const state = new DecoderState(this, encoded);
    const options = {
      start: settings.start_token,
      ends: new Set(settings.end_tokens),
      first: settings.first_token,
      suppressed: settings.suppressed_sequences,
      minNewTokens: settings.min_new_tokens,
      noRepeatNgramSize: settings.no_repeat_ngram_size,
      maxNewTokens: Math.min(maxNewTokens ?? rounded + settings.longer_than_source, settings.max_target_tokens ?? Infinity),
      numBeams,
      lengthPenalty: settings.length_penalty,
      patience: settings.patience,
    };
    const step = (tokens, parents) => state.step(tokens, parents);
    const { tokens: target, nodes } = numBeams > 1 ? await beamSearch(step, options) : { tokens: await greedySearch(step, options) };
    const translation = this.decode(target);
    return {
      search: nodes && nodes.map((node) => ({
        ...node, token: this.tokenTexts([node.id])[0], attention: node.row === null ? null : state.attention[node.depth][node.row],
      })),
      text: translation,
      source: this.tokenTexts(source),
      target: this.tokenTexts(target),
      ...await this.forward(encoded, target, text, translation),
    };
  }

  // The inputs of the decoder that depend on the source only.
  async encodeSource(ids) {
    const attention_mask = int64(ids.map(() => 1), [1, ids.length]);
    const outputs = await this.encoder.run({ input_ids: int64(ids, [1, ids.length]), attention_mask });
    return { attention_mask, ...outputs };
  }

  // What a forward pass over a translation gives: the weights of the cross-attention while each token of the target was
  // predicted, [layers, heads, target, source], and of a model with a calibration the rating of the translation.
  async forward(encoded, target, text, translation) {
    const { calibration, start_token } = this.settings;
    const tokens = [start_token, ...target.slice(0, -1)];
    const feeds = { ...encoded, ...this.emptyCache(), decoder_input_ids: int64(tokens, [1, 1, tokens.length]) };
    const names = calibration ? ["cross_attentions", "logits"] : ["cross_attentions"];
    const { cross_attentions, logits } = await this.decoder.run(feeds, names);
    const attention = { shape: cross_attentions.dims.slice(2), values: cross_attentions.data };
    if (!calibration) return { attention, rating: null };
    const first = Number(target[0] === this.settings.first_token); // a forced token has no probability
    const values = logProbabilities(logits.data, target).slice(first);
    const words = wordProbabilities(target.slice(first).map((id) => this.decode([id])), values);
    return {
      attention,
      rating: { confidence: confidence(calibration, text, encoded.attention_mask.dims[1], translation, values), words },
    };
  }

  emptyCache() {
    const { decoder_layers, num_heads, d_k, d_v } = this.settings;
    const layers = [...Array(decoder_layers).keys()];
    const empty = (width) => new ort.Tensor("float32", new Float32Array(0), [1, 1, num_heads, 0, width]);
    return Object.fromEntries(layers.flatMap((i) => [
      [`past.${i}.keys`, empty(d_k)], [`past.${i}.values`, empty(d_v)]]));
  }
}

// The KV cache of a search.
class DecoderState {
  constructor(translator, encoded) {
    this.decoder = translator.decoder;
    this.encoded = encoded;
    this.cache = translator.emptyCache();
    this.attention = []; // of each step and beam, [layers][source]: the mean over the heads
  }

  async step(tokens, parents) {
    const past = Object.entries(this.cache).map(([name, tensor]) => [name, selectBeams(tensor, parents)]);
    const feeds = {
      ...this.encoded, ...Object.fromEntries(past), decoder_input_ids: int64(tokens, [1, tokens.length, 1]),
    };
    const { logits, cross_attentions, ...present } = await this.decoder.run(feeds);
    this.attention.push(meanOverHeads(cross_attentions));
    this.cache = Object.fromEntries(Object.entries(present).map(([name, tensor]) => [
      name.replace("present", "past"), tensor]));
    const vocabSize = logits.dims.at(-1);
    return tokens.map((_, i) => logits.data.subarray(i * vocabSize, (i + 1) * vocabSize));
  }
}

// The mean over the heads of a tensor [1, beams, layers, heads, 1, source], as nested arrays.
function meanOverHeads({ dims: [, beams, layers, heads, , sources], data }) {
  const mean = (start, i) => Array.from({ length: heads }, (_, head) => data[start + head * sources + i])
    .reduce((sum, weight) => sum + weight, 0) / heads;
  return Array.from({ length: beams }, (_, beam) => Array.from({ length: layers }, (_, layer) =>
    Array.from({ length: sources }, (_, i) => mean((beam * layers + layer) * heads * sources, i))));
}

// Select beams of a tensor [1, beams, …].
function selectBeams(tensor, indices) {
  const [, beams, ...rest] = tensor.dims;
  if (indices.length === beams && indices.every((index, i) => index === i)) return tensor;
  const size = rest.reduce((product, length) => product * length, 1);
  const selected = new Float32Array(indices.length * size);
  indices.forEach((index, i) => selected.set(tensor.data.subarray(index * size, (index + 1) * size), i * size));
  return new ort.Tensor("float32", selected, [1, indices.length, ...rest]);
}

function int64(values, shape) {
  return new ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
}

async function loadGraph(folder, name) {
  const response = await fetchFile(folder, name);
  return ort.InferenceSession.create(new Uint8Array(await response.arrayBuffer()), { executionProviders: ["wasm"] });
}

async function fetchFile(folder, name) {
  const response = await fetch(new URL(name, folder));
  if (!response.ok) throw new Error(`${name} cannot be loaded: ${response.status} ${response.statusText}.`);
  return response;
}
