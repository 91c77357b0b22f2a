// The form of the page. The model runs in a worker.
import { showAttention } from "./attention.js";

const byId = (id) => document.getElementById(id);
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
let requests = 0;
let started = 0; // time of the last request

byId("status").textContent = "Loading the model…";

worker.onmessage = ({ data }) => {
  if (data.settings) {
    byId("model").textContent = describe(data.settings);
    setBusy(false, "Ready.");
  } else if (data.id === undefined) {
    showError(`The model cannot be loaded: ${data.error}`);
  } else if (data.id === requests) {
    if (data.error) fail(data.error); else show(data.result);
  }
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

function translate() {
  if (byId("translate").disabled) return;
  setBusy(true, "Translating…");
  started = performance.now();
  worker.postMessage({ id: ++requests, text: byId("source").value, numBeams: Number(byId("beams").value) });
}

function show(result) {
  byId("translation").textContent = result.text;
  byId("result").hidden = byId("attention").hidden = false;
  showAttention(result);
  setBusy(false, `Translated in ${((performance.now() - started) / 1000).toFixed(2)} seconds.`);
}

function fail(message) {
  byId("result").hidden = byId("attention").hidden = true;
  setBusy(false, "");
  showError(message);
}

function setBusy(busy, status) {
  byId("translate").disabled = busy;
  byId("status").textContent = status;
  byId("error").textContent = "";
}

function showError(message) {
  byId("status").textContent = "";
  byId("error").textContent = message;
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
byId("source").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    translate();
  }
});
