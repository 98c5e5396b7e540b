"use strict";
// The trace that case.py wrote, added up. A step says what is new in it; `remember` keeps what there is after each.

const x = JSON.parse(document.getElementById("trace").textContent);
const tables = [];                                      // after each step: request → the blocks that it holds
const cache = {at: -1, times: new Map()};               // after step `at`: block → how often the prefix cache has it

function remember() {
  for (let s = tables.length; s < x.steps.length; s++) {
    const step = x.steps[s], now = new Map(s ? tables[s - 1] : []);
    for (const [r, kept, ...more] of step.tables) {
      if (kept < 0) now.delete(r);
      else now.set(r, (now.get(r) || []).slice(0, kept).concat(more));
    }
    tables.push(now);
    step.rows = step.rows.map(([r, prefill, decode, computed, hit, drafted, accepted]) =>
      ({r, prefill, decode, computed, hit, drafted, accepted}));
    step.row = new Map(step.rows.map(row => [row.r, row]));
    step.waiting = step.waiting || (s ? x.steps[s - 1].waiting : []);
    step.prefill = step.rows.reduce((sum, row) => sum + row.prefill, 0);
    step.tokens = step.rows.reduce((sum, row) => sum + row.decode, step.prefill);
    // After a pause nobody knows when a step began.
    step.took = s && tables[s - 1].size ? step.t - x.steps[s - 1].t : 0;
  }
  if (!Array.isArray(x.cells)) x.cells = Array.from({length: x.cells}, (_, i) => i + 1);   // 0 is vLLM's null block
}

function owners(s) {                                    // block → the requests that hold it
  const held = new Map();
  for (const [r, blocks] of tables[s]) {
    for (const b of blocks) held.set(b, [...(held.get(b) || []), r]);
  }
  return held;
}

function cached(s) {                                    // the blocks in the prefix cache
  const count = (blocks, n) => blocks.forEach(b => cache.times.set(b, (cache.times.get(b) || 0) + n));
  while (cache.at < s) {
    cache.at++;
    count(x.steps[cache.at].removed, -1);
    count(x.steps[cache.at].stored, 1);
  }
  while (cache.at > s) {
    count(x.steps[cache.at].stored, -1);
    count(x.steps[cache.at].removed, 1);
    cache.at--;
  }
  return new Set([...cache.times.keys()].filter(b => cache.times.get(b) > 0));
}

function filled(s, block, r) {                          // how full a request's block is, 0 to 1
  const row = x.steps[s].row.get(r), table = tables[s].get(r), size = x.block_size;
  const tokens = row ? row.computed + row.prefill + row.decode : 0;
  if (!row || table.length > Math.ceil(tokens / size) + 1) return 1;    // several kinds of layers: not told apart
  return Math.max(0, Math.min(1, tokens / size - table.indexOf(block)));
}

const last = () => x.steps.length - 1;
const nr = s => x.first + s;                            // a step's own number
const name = r => x.names[r][0];
const colour = r => `c${r % x.colours.length}`;
const many = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
const percent = share => `${(100 * share).toFixed(1)} %`;
const ms = s => `${(1000 * s).toFixed(s < 0.1 ? 1 : 0)} ms`;
const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);

function words(s) {                                     // a step, for who does not see the picture
  const step = x.steps[s], each = step.rows.map(row => [
    row.prefill && `computes ${many(row.prefill, "token")} of its prompt`,
    row.hit && `${row.hit} more were in the prefix cache`,
    row.decode && `computes ${many(row.decode, "token")} of its answer`,
    row.drafted && `${row.accepted} of ${row.drafted} guesses accepted`,
  ].filter(Boolean).join(", ")).map((said, i) => `${name(step.rows[i].r)} ${said}`);
  const others = [["preempted", "is preempted"], ["finished", "ended"], ["waiting", "waits"]];
  const more = others.flatMap(([key, what]) => step[key].map(r => `${name(r)} ${what}`));
  return [...each, ...more].join("; ") + ".";
}
