// The form of the page. The model runs in a worker.
import { showAttention } from "./attention.js";
import { percent, underlined } from "./confidence.js";

const byId = (id) => document.getElementById(id);
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
let busy = true; // loading or translating
let waiting = null; // the last request that was submitted while the worker was busy
let started = 0; // time of the last request
let results = []; // of the sentences of the last text
let doubtful = 0; // the probability below which a word is underlined

byId("status").textContent = "Loading the model…";

worker.onmessage = ({ data }) => {
  if (data.loading) {
    showError(`The model cannot be loaded: ${data.error}`);
    return;
  }
  busy = false;
  if (data.settings) {
    byId("model").textContent = describe(data.settings);
    greet(data.settings);
    doubtful = data.settings.doubtful;
    byId("translate").disabled = false;
    setStatus("Ready.");
  }
  if (waiting) send(waiting); // the result of an earlier request is not shown
  else if (data.result) show(data.result);
  else if (data.error) fail(data.error);
};
worker.onerror = (event) => {
  event.preventDefault();
  showError(`The model cannot be loaded: ${event.message || "a script is missing"}.`);
};

function describe(settings) {
  const count = (number) => number.toLocaleString("en");
  return `${settings.encoder_layers} + ${settings.decoder_layers} layers, d_model ${settings.d_model}, `
    + `${settings.num_heads} heads, ${count(settings.vocab_size)} tokens, ${count(settings.parameters)} parameters `
    + `(${settings.dtype}).`;
}

// What the model can translate, and sentences to click.
function greet({ about, examples }) {
  byId("about").textContent = about;
  byId("examples").replaceChildren(...examples.map((text) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => {
      byId("source").value = text;
      translate();
    });
    return button;
  }));
}

// Send a request to the worker; while it is busy, the last one waits. The button stays enabled, because a control that is
// disabled loses the keyboard focus.
function send(request) {
  if (busy) {
    waiting = request;
    return;
  }
  busy = true;
  waiting = null;
  setStatus("Translating…");
  started = performance.now();
  worker.postMessage(request);
}

function show(found) {
  results = found.results;
  byId("translation").replaceChildren(...found.parts.flatMap((part, i) => {
    const rating = i % 2 && results[(i - 1) / 2].rating; // every second part is a sentence
    return rating ? underlined(part, rating.words, doubtful) : part;
  }));
  showConfidence(results.filter(({ rating }) => rating).map(({ rating }) => rating.confidence));
  byId("sentence").replaceChildren(...found.sentences.map((sentence, i) => new Option(sentence, i)));
  byId("sentences").hidden = results.length < 2;
  inspect();
  setStatus(`Translated in ${((performance.now() - started) / 1000).toFixed(2)} seconds.`);
}

// The lowest confidence of the sentences; nothing without a calibration.
function showConfidence(confidences) {
  byId("rating").hidden = !confidences.length;
  byId("confidence").textContent = percent(Math.min(...confidences));
  byId("limit").textContent = percent(doubtful);
  byId("legend").hidden = !byId("translation").querySelector("u");
}

// Show what the model computed for the selected sentence; nothing for a text without letters.
function inspect() {
  const result = results[byId("sentence").value];
  byId("attention").hidden = !result;
  byId("search").hidden = !result?.search;
  if (result) showAttention(result);
  if (result?.search) drawSearch(byId("candidates"), result.search, result.source);
}

function fail(message) {
  byId("translation").textContent = "";
  byId("rating").hidden = byId("legend").hidden = true;
  byId("sentences").hidden = byId("attention").hidden = byId("search").hidden = true;
  showError(message);
}

function setStatus(status) {
  byId("status").textContent = status;
  byId("error").textContent = "";
}

function showError(message) {
  byId("status").textContent = "";
  byId("error").textContent = message;
}

function translate() {
  send({ text: byId("source").value, numBeams: Number(byId("beams").value) });
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
byId("sentence").addEventListener("change", inspect);
byId("source").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    translate();
  }
});
