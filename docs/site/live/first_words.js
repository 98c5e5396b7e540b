// The first minute in a page: a text that is typed, and its next words, which branch as the temperature says. The
// teaching model (llama.js, above) computes them here; the drawing is that of workshop/course/widgets/sampling.
const LABEL_PX = 18, WHOLE_PX = 88, THINNEST_PX = 0.7, STEM_CHARACTERS = 26, ROWS = 8, GLIDE_MS = 300, TRIES = 20;
const [box, slider, add, shown, status] = ["text", "temperature", "add", "picture", "status"].map(id => document.getElementById(id));

const escaped = text => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const inAttribute = text => escaped(text).replaceAll('"', "&quot;").replaceAll("'", "&#x27;");

function percent(p) {
  if (p >= 0.9995) return "100 %";
  if (p >= 0.0995) return `${(100 * p).toFixed(0)} %`;
  if (p >= 0.00995) return `${(100 * p).toFixed(1)} %`;
  if (p >= 0.000095) return `${(100 * p).toFixed(2)} %`;
  return p > 0 ? "< 0.01 %" : "0 %";
}

const spoken = text => text.replaceAll("\n", " line end ").trim() || "space";

function plain(text) {
  if (text.trim() && !text.includes("\ufffd")) return text.trim();
  if (!text) return "▯ (no text)";
  if (text.includes("\ufffd")) return `${text.replaceAll("\ufffd", "▯")} (part of a character)`;
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍").replace(/^ +/, spaces => "·".repeat(spaces.length));
}

function places(shares) {
  let begin = (shares.length * LABEL_PX + WHOLE_PX - WHOLE_PX * shares.reduce((sum, share) => sum + share, 0)) / 2, top = 0;
  return shares.map(share => {
    const width = share * WHOLE_PX, height = LABEL_PX + width;
    const place = { begin: begin + width / 2, end: top + height / 2, height, width };
    begin += width; top += height;
    return place;
  });
}

function endOf(text) {
  const line = text.split(/\s+/).filter(Boolean).join(" ");
  if ([...line].length <= STEM_CHARACTERS) return line;
  const cut = [...line].slice(-STEM_CHARACTERS).join("");
  return `… ${cut.slice(cut.indexOf(" ") + 1)}`;
}

const transform = ({ begin, end }) =>
  `translateY(${begin.toFixed(2)}px) scaleY(${(Math.abs(end - begin) < 0.01 ? 0.01 : end - begin).toFixed(2)})`;
const widthOf = ({ width }) => (width ? `${Math.max(THINNEST_PX, width).toFixed(2)}px` : "0px");

// As branching.py draws it; a word is {text, share, before, look}.
function branching(text, words, isStill) {
  const now = places(words.map(word => word.share)), old = places(words.map(word => word.before));
  const height = words.length * LABEL_PX + WHOLE_PX;
  const branches = words.map(({ look }, i) => `<path class="of-${look}" d="M0 0C.5 0 .5 1 1 1" style="transform:${transform(now[i])};`
    + `stroke-width:${widthOf(now[i])};--t0:${transform(old[i])};--w0:${widthOf(old[i])}"/>`);
  const rows = words.map(({ text, share, look }, i) => `<div class="word" style="height:${now[i].height.toFixed(1)}px;`
    + `--h0:${old[i].height.toFixed(1)}px"><i class="node${share ? ` bg-${look}` : ""}"></i>`
    + `<div class="name cut" title="${inAttribute(spoken(text))}">${escaped(plain(text))}</div>`
    + `<span class="number">${escaped(percent(share))}</span></div>`);
  return `<div class="branching plain${isStill ? "" : " glides"}"><div class="head"></div>`
    + `<div class="stem"><span class="text">${escaped(endOf(text))}</span><i class="trunk bg-blue"></i></div>`
    + `<svg class="flow" viewBox="0 0 1 ${height}" preserveAspectRatio="none" aria-hidden="true" style="height:${height}px">`
    + `${branches.join("")}</svg><div class="words">${rows.join("")}</div></div>`;
}

// Probabilities of all tokens; at temperature 0 the most probable one has all.
function softmax(logits, temperature) {
  const most = logits.reduce((a, b) => Math.max(a, b));
  if (temperature === 0) return Float64Array.from(logits, logit => (logit === most ? 1 : 0));
  const shares = Float64Array.from(logits, logit => Math.exp((logit - most) / temperature));
  const sum = shares.reduce((a, b) => a + b);
  return shares.map(share => share / sum);
}

async function unpacked(id) {
  const packed = await fetch(`data:;base64,${document.getElementById(id).textContent}`);
  return new Response(packed.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

async function start() {
  if (typeof DecompressionStream !== "function")
    throw new Error("This browser is too old for the model (no DecompressionStream): Chromium or Edge 120, Firefox 120, Safari 17 can.");
  const scripts = [...document.querySelectorAll('script[type="application/gzip"]')];
  const files = Object.fromEntries(await Promise.all(scripts.map(async ({ id }) => [id, await unpacked(id)])));
  const model = teachingModel(files), tokens = id => model.tokenizer.decode([id]);
  let asked, logits, ranked, shares, before = new Map(), last = -Infinity;

  function show() {
    const text = box.value.trimEnd() || box.placeholder;    // a space at the end would ask for a word without one in front
    if (text !== asked) {
      [asked, [logits]] = [text, model.logits(model.tokenizer.encode(text))];
      ranked = [...logits.keys()].sort((a, b) => logits[b] - logits[a]).slice(0, ROWS);
    }
    shares = softmax(logits, Number(slider.value));
    slider.nextElementSibling.value = Number(slider.value).toFixed(2);
    const words = ranked.map(id => ({ id, text: tokens(id), share: shares[id], look: "blue" }));
    const rest = Math.max(0, 1 - words.reduce((sum, word) => sum + word.share, 0));
    words.push({ id: "others", text: "all others", share: rest, look: "grey" });
    for (const word of words) word.before = before.get(word.id) ?? 0;
    const isStill = performance.now() - last < GLIDE_MS;      // a slider that is dragged moves it in small steps already
    last = performance.now();
    shown.innerHTML = branching(text, words, isStill);
    const said = words.slice(0, 6).filter(word => word.share && word.id !== "others");
    shown.setAttribute("aria-label", `Next token: ${said.map(word => `${spoken(word.text)} ${percent(word.share)}`).join(", ")}`);
    before = new Map(words.map(word => [word.id, word.share]));
  }

  function addWord() {
    for (let i = 0; i < TRIES; i++) {
      let luck = Math.random(), id = 0;
      while (id < shares.length - 1 && (luck -= shares[id]) >= 0) id++;
      if (!tokens(id) || tokens(id).includes("\ufffd")) continue;      // the end of the text, a part of a character
      box.value = asked + tokens(id);
      return show();
    }
  }

  box.addEventListener("input", show);
  slider.addEventListener("input", show);
  add.addEventListener("click", addWord);
  add.disabled = slider.disabled = false;
  status.textContent = "The model runs in this page: nothing that you type leaves it.";
  show();
  document.documentElement.dataset.ready = Math.round(performance.now());
}

globalThis.drawing = { branching, endOf, percent, plain };      // for the test that compares them with the course's
start().catch(error => {
  status.textContent = String(error.message ?? error);
  console.error(error);
});
