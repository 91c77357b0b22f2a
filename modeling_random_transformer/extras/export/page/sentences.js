// Texts of several sentences: split into sentences, and the parts of the translation, as in extras/wrappers/sentences.py.

// The segmenter of browsers ends a sentence after a title and after an initial.
const TITLE = /(^|[^\p{L}])(\p{Lu}|Mrs?|Ms|Dr|Dra|Prof|St|Sra?|Hr|Fr|Mme)\. *$/u;
const LETTER = /(?![\u115f\u1160\u3164\uffa0])\p{L}/u; // fillers are invisible
const VISIBLE = /[^\s\p{C}\p{M}\u115f\u1160\u2800\u3164\uffa0]/u;
// Languages whose sentences end with a character of this width have no space between sentences.
const WIDE = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\u3000-\u303f\uff01-\uff60][”’]*$/u;
const ASCII = /^[\x00-\x7f]*$/;
// Markers of list items, headings and quotes at the beginning of a line.
const MARKER = /^\s*(?:(?:[-*+•‣◦▪·–—>]|#{1,6}|\(?(?:\d{1,3}|[a-zA-Z])\)|\d{1,3}\.|\[[ xX]\])\s+)+/;

// Returns the sentences without white space at both ends, and the gaps before each sentence and after the last one: white
// space, line breaks, markers, and parts without letters.
export function splitText(text, language) {
  const sentences = [], gaps = [""];
  for (const segment of parts(text, language)) {
    const startsLine = sentences.length === 0 || gaps.at(-1).includes("\n");
    const marker = (startsLine && MARKER.exec(segment)?.[0]) || "";
    const part = segment.slice(marker.length);
    gaps[gaps.length - 1] += marker;
    const sentence = part.trim();
    const start = part.indexOf(sentence);
    if (!LETTER.test(sentence)) {
      gaps[gaps.length - 1] += part;
      continue;
    }
    gaps[gaps.length - 1] += part.slice(0, start);
    sentences.push(sentence);
    gaps.push(part.slice(start + sentence.length));
  }
  return { sentences, gaps };
}

// Whether nothing of a text is visible.
export function isBlank(text) {
  return !VISIBLE.test(text);
}

// The parts of a translated text: the gaps, and between them the translations of the sentences. Between two sentences of a
// line, the translation decides on the space, unless both sides are ASCII without a space, such as the parts of a URL.
export function textParts(translations, gaps, sentences) {
  const isMissing = (i) => gaps[i] === "" && !ASCII.test(sentences[i - 1].at(-1) + sentences[i][0]);
  const spaceAfter = (translation) => (WIDE.test(translation.trim()) ? "" : " ");
  const parts = translations.flatMap((translation, i) => {
    const isBetween = i > 0 && (gaps[i] === " " || isMissing(i));
    return [isBetween ? spaceAfter(translations[i - 1]) : gaps[i], translation.trim()];
  });
  return [...parts, gaps.at(-1)];
}

// Sentences with the white space after them; lines, in a browser without a segmenter.
function parts(text, language) {
  if (!Intl.Segmenter) return text.match(/[^\n]*\n|[^\n]+/g) ?? [];
  const [locale] = /^[a-z]{2,3}/.exec(language) ?? ["en"];
  const found = [];
  for (const { segment } of new Intl.Segmenter(locale, { granularity: "sentence" }).segment(text)) {
    if (TITLE.test(found.at(-1) ?? "")) found[found.length - 1] += segment;
    else found.push(segment);
  }
  return found;
}
