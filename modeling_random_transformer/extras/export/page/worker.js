// Runs the model outside the page's thread. Messages, one at a time: { text, numBeams } → { result } or { error }.
// The first message to the page is { settings } or { loading: true, error }.
import { Translator } from "./translator.js";

const loading = Translator.load();
loading.then(
  ({ settings }) => postMessage({ settings }),
  (error) => postMessage({ loading: true, error: error.message }),
);

onmessage = async ({ data: { text, numBeams } }) => {
  try {
    postMessage({ result: await (await loading).translateText(text, { numBeams }) });
  } catch (error) {
    postMessage({ error: error.message });
  }
};
