// Runs the model outside the page's thread. Messages: { id, text, numBeams } → { id, result } or { id, error }.
// The first message to the page is { settings } or { error }.
import { Translator } from "./translator.js";

const loading = Translator.load();
loading.then(
  ({ settings }) => postMessage({ settings }),
  (error) => postMessage({ error: error.message }),
);

onmessage = async ({ data: { id, text, numBeams } }) => {
  try {
    postMessage({ id, result: await (await loading).translate(text, { numBeams }) });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
};
