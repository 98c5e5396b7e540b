// The drawing: requests over steps, a step's budget, the pool. Lengths are pixels; x runs along steps.

const TOP = 84, ROW = 25, STRIP = 22, MOST_ROWS = 24, MOST_CELLS = 640;

const rect = (left, top, w, h, more) =>
  `<rect x="${left.toFixed(1)}" y="${top.toFixed(1)}" width="${w.toFixed(1)}" height="${h.toFixed(1)}" ${more}/>`;
const text = (left, y, said, more = 'class="quiet"') => `<text x="${left.toFixed(1)}" y="${y}" ${more}>${said}</text>`;
const line = (left, y, w, more) => `<path d="M${left.toFixed(1)} ${y}h${w.toFixed(1)}" ${more}/>`;
const range = (from, to) => Array.from({length: Math.max(0, to - from)}, (_, i) => from + i);

const margin = () => x.names.some(([, , by]) => by) ? 128 : 40;  // room for the learners' names beside the letters

// Draws steps from … to - 1 into a place, a column each. `end`: from here they are hidden. `cursor`: the step with a
// frame. `only`: the one request that is not pale. `fades`: whether what comes after the cursor does.
function band(place, {from, to, end, columns, cursor, only, fades}) {
  const width = place.clientWidth || 700, edge = margin(), w = (width - edge - 2) / columns, X = s => edge + (s - from) * w;
  const bar = w - Math.min(3, w / 4), shown = range(from, Math.min(to, end)), rows = rowsOf(shown, cursor);
  const bottom = TOP + rows.drawn.length * ROW + (rows.more ? 16 : 0) + 2;
  const out = strips(shown, {X, w, bar, width, slowest: Math.max(...(fades ? shown : range(0, x.steps.length)).map(s => x.steps[s].took)) || 1});
  rows.drawn.forEach((r, i) => {
    const pale = only !== null && only !== r ? "pale" : "";
    out.push(`<g class="${colour(r)} ${pale}">${request(r, TOP + i * ROW, shown, {X, w, bar})}</g>`);
  });
  if (rows.more) out.push(text(edge, bottom - 5, `and ${many(rows.more, "more request")}`));
  const every = [1, 2, 5, 10, 20, 50].find(n => n * w >= 56) || 100;
  for (const s of range(from, to)) {
    if (nr(s) % every === 0) out.push(text(X(s) + w / 2, bottom + 11, nr(s), 'class="quiet" text-anchor="middle"'));
  }
  if (fades && cursor + 1 < Math.min(to, end)) {
    const left = X(cursor + 1) - 1.5;
    out.push(rect(left, 0, X(Math.min(to, end)) - left + 1.5, bottom, 'fill="var(--panel)" opacity=".6"'));
  }
  if (end < to) {
    out.push(rect(X(end), 0, X(to) - X(end), bottom, 'fill="var(--empty)"'), text(X(end) + 10, TOP + 14, "?", 'class="large"'));
  }
  if (from <= cursor && cursor < to) out.push(rect(X(cursor) - 1.5, 0, w, bottom, 'rx="3" class="frame"'));
  place.innerHTML = `<svg viewBox="0 0 ${width} ${bottom + 14}" height="${bottom + 14}" aria-hidden="true">${out.join("")}</svg>`;
  place.setAttribute("role", "img");
  const said = from <= cursor && cursor < to ? ` In step ${nr(cursor)}: ${words(cursor)}` : "";
  place.setAttribute("aria-label", `Steps ${nr(from)} to ${nr(Math.min(to, end) - 1)}.${said}`);
}

function rowsOf(shown, cursor) {                        // the requests of these steps; of too many those at the cursor
  const there = s => [...x.steps[s].rows.map(row => row.r), ...x.steps[s].waiting, ...x.steps[s].finished];
  const all = [...new Set(shown.flatMap(there))].sort((a, b) => a - b), now = new Set(there(cursor));
  const first = [...all.filter(r => now.has(r)), ...all.filter(r => !now.has(r))].slice(0, MOST_ROWS);
  return {drawn: first.sort((a, b) => a - b), more: all.length - first.length};
}

function strips(shown, {X, w, bar, width, slowest}) {   // above the rows: how long, how many tokens, how full
  const out = [];
  ["time", "tokens", "KV"].forEach((said, i) => {
    const y = STRIP + 2 + i * 26;
    out.push(text(0, y - 2, said), line(margin(), y + 0.5, width - margin(), 'stroke="var(--line)"'));
  });
  for (const s of shown) {
    const step = x.steps[s], up = (y, share, fill) => rect(X(s), y - STRIP * share, bar, STRIP * share, `fill="var(--${fill})"`);
    out.push(
      up(24, step.took / slowest, "muted"),
      up(50, step.tokens && Math.max(1 / STRIP, step.tokens / x.budget), "text"),
      up(50, step.prefill / x.budget, "blue"),
      up(76, step.usage, "kv"),
      `<g><title>step ${nr(s)}: ${step.took ? ms(step.took) : "–"}, ${many(step.tokens, "token")}, ${percent(step.usage)} of the KV cache</title>`,
      rect(X(s), 0, w, 78, 'fill="transparent"'),
      "</g>",
    );
  }
  return out;
}

function request(r, y, shown, {X, w, bar}) {            // one request's row
  const base = y + 22, middle = base - 4.5;
  const out = [`<g data-request="${r}"><title>${safe(x.names[r][1])}</title>${text(4, y + 16, name(r), 'class="letter"')}${text(34, y + 16, safe(x.names[r][2]))}</g>`];
  for (const s of shown) {
    const step = x.steps[s], row = step.row.get(r), left = X(s);
    if (row) out.push(row.prefill ? prefill(row, left, base, bar) : decode(row, left, base, bar));
    else if (step.waiting.includes(r)) out.push(line(left, middle, w, 'class="waits"'));
    else if (tables[s].has(r)) out.push(line(left, middle, w, 'class="thread"'));
    if (step.finished.includes(r)) out.push(`<path d="M${(left - 1.4).toFixed(1)} ${y + 7}V${base}" class="over"/>`);
    if (step.preempted.includes(r)) out.push(text(left + bar / 2, base - 8, "✕", 'class="cross" text-anchor="middle"'));
  }
  return out.join("");
}

function prefill(row, left, base, bar) {                // higher with more tokens, by their logarithm; hatched: cached
  const known = Math.min(x.budget, row.prefill + row.hit);
  const high = 7 + 15 * Math.log2(known) / Math.log2(Math.max(2, x.budget));
  const hit = high * row.hit / (row.prefill + row.hit);
  let out = rect(left, base - high + hit, bar, high - hit, 'rx="1.5" class="fill"');
  if (row.hit) out += rect(left, base - high, bar, hit, 'rx="1.5" class="hit"');
  const size = row.prefill > 99 ? "class=\"inside small\"" : "class=\"inside\"";
  if (bar > 13 && high - hit > 10 && row.prefill < 1000) out += text(left + bar / 2, base - 2.5, row.prefill, `${size} text-anchor="middle"`);
  return out;
}

function decode(row, left, base, bar) {                 // one token; with a draft its guesses, filled where accepted
  if (!row.drafted) return rect(left, base - 7, bar, 5, 'rx="1.5" class="fill"');
  const high = 16 / (row.drafted + 1);
  return range(0, row.drafted + 1).map(d =>
    rect(left, base - 4 - high * d, bar, high - 1, `class="${d <= row.accepted ? "fill" : "edge"}"`)).join("");
}

function drawBudget(place, says, s, only) {
  const step = x.steps[s], whole = Math.max(step.tokens, x.budget);
  const part = (r, n, kind) => n && `<span class="${colour(r)} ${kind} ${only !== null && only !== r ? "pale" : ""}"
    style="width:${100 * n / whole}%" title="${name(r)}: ${many(n, "token")}">${name(r)} ${n}</span>`;
  place.innerHTML = step.rows.flatMap(row => [part(row.r, row.decode, "decode"), part(row.r, row.prefill, "")]).filter(Boolean).join("");
  says.textContent = `${many(step.tokens, "token")} of at most ${x.budget.toLocaleString("en")} (max_num_batched_tokens): `
    + `${step.prefill.toLocaleString("en")} prefill, ${(step.tokens - step.prefill).toLocaleString("en")} decode`;
  place.setAttribute("aria-label", `${says.textContent}. ${words(s)}`);
}

function drawPool(place, says, s, only) {
  const pool = {held: owners(s), kept: cached(s), taken: new Set(x.steps[s].taken), freed: new Set(x.steps[s].freed)};
  const group = Math.ceil(x.cells.length / MOST_CELLS), cells = [];
  for (let i = 0; i < x.cells.length; i += group) cells.push(cell(x.cells.slice(i, i + group), pool, s, only));
  place.className = cells.length > 260 ? "tiny" : cells.length > 96 ? "middle" : "";
  place.innerHTML = cells.join("");
  const several = [...pool.held.values()].filter(who => who.length > 1).length;
  const spare = [...pool.kept].filter(b => !pool.held.has(b)).length, left = x.pool - x.cells.length;
  says.textContent = [
    `${pool.held.size.toLocaleString("en")} of ${many(x.pool, "block")} held, ${several} of them by several requests`,
    `a block has room for ${x.block_size} tokens`,
    spare && `of the free ones ${spare.toLocaleString("en")} still in the prefix cache`,
    group > 1 && `a box is ${group} blocks, a stripe each, dark where it is shared`,
    left > 0 && `${left.toLocaleString("en")} that nobody takes here are not drawn`,
  ].filter(Boolean).join("; ");
  const each = [...tables[s]].map(([r, blocks]) =>
    `${name(r)} holds ${blocks.length > 12 ? many(blocks.length, "block") : `block ${blocks.join(", ")}`}`);
  place.setAttribute("aria-label", `${[says.textContent, ...each].join("; ")}.`);
}

function cell(part, {held, kept, taken, freed}, s, only) {    // one box: a block, or several of a large pool
  const mine = part.filter(b => held.has(b)), who = [...new Set(mine.flatMap(b => held.get(b)))], first = part[0];
  const cls = [who.length ? colour(who[0]) : ""];
  let style = "", label = `block ${first}: free`;
  if (part.length > 1) {
    const stripe = b => !held.has(b) ? "empty" : held.get(b).length > 1 ? "text" : x.colours[held.get(b)[0] % x.colours.length];
    if (who.length) style = mix(part.map(stripe), "to right");
    label = `blocks ${first} to ${part.at(-1)}: ${mine.length} held`;
  } else if (who.length > 1) style = mix(who.slice(0, 6).map(r => x.colours[r % x.colours.length]), "135deg");
  else if (who.length) {
    const full = filled(s, first, who[0]);
    style = `--f:${(100 * full).toFixed(0)}%`;
    cls.push(full < 0.98 ? "part" : "", full < 0.4 ? "thin" : "");
  } else if (kept.has(first)) label += ", still in the prefix cache";
  if (part.length === 1 && who.length) label = `block ${first}: held by ${who.map(name).join(", ")}`;
  if (style.startsWith("--mix")) cls.push("mixed");
  if (part.some(b => taken.has(b))) cls.push("taken");
  else if (part.some(b => freed.has(b) && !held.has(b))) cls.push("freed");
  if (!mine.length && part.some(b => kept.has(b))) cls.push("cached");
  if (only !== null && !who.includes(only)) cls.push("pale");
  const letters = who.length > 2 ? `×${who.length}` : who.map(name).join("");
  return `<i class="${cls.filter(Boolean).join(" ")}" style="${style}" title="${label}" data-block="${first}" data-owners="${who.join(" ")}">`
    + `${letters && `<b>${letters}</b>`}<small>${first}</small></i>`;
}
const mix = (names, way) => `--mix:linear-gradient(${way},${names.map((one, i) =>
  `var(--${one}) ${100 * i / names.length}% ${100 * (i + 1) / names.length}%`).join(",")})`;
