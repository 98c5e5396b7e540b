// The planner's page: Python starts in it, and answers what the form says. Everything that it needs is in the page
// itself, so it also works from a file, without a network.
const HERE = "http://in-this-page.invalid/";      // never asked: `fetch` below answers for it
const form = document.querySelector(".plan form"), answer = document.getElementById("answer");
const outside = globalThis.fetch;

const say = words => {
  answer.innerHTML = '<p role="status"></p>';
  answer.firstChild.textContent = words;
};

async function unpacked(id) {
  const packed = await outside(`data:;base64,${document.getElementById(id).textContent}`);
  return new Response(packed.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

const asModule = async id =>
  import(URL.createObjectURL(new Blob([await unpacked(id)], { type: "text/javascript" })));

globalThis.fetch = async (what, ...more) => {
  const address = String(what.url ?? what);
  if (!address.startsWith(HERE)) return outside(what, ...more);
  const [id, type] = address.endsWith(".wasm") ? ["wasm", "application/wasm"] : ["stdlib", "application/zip"];
  return new Response(await unpacked(id), { headers: { "Content-Type": type } });
};

async function planner() {
  if (typeof WebAssembly !== "object" || typeof DecompressionStream !== "function")
    throw new Error("This browser cannot run Python (no WebAssembly or no DecompressionStream). Use a newer one: Chromium or Edge 120, Firefox 120, Safari 17.");
  say("Python starts …");
  const [{ loadPyodide }, made, code, lock] =
    await Promise.all([asModule("loader"), asModule("module"), unpacked("planner"), unpacked("lock")]);
  const python = await loadPyodide({
    indexURL: HERE, createPyodideModule: made.default, lockFileContents: new TextDecoder().decode(lock), packageBaseUrl: HERE,
  });
  python.unpackArchive(code, "zip", { extractDir: "/planner" });
  return python.runPython("import sys; sys.path.insert(0, '/planner'); from plan_page import answer; answer");
}

const texts = () => [...new FormData(form)];
const begun = new Map(texts());

// The form as the address says: what it does not name is as at first.
function take() {
  form.reset();
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    const control = form.elements[name], before = control?.value;
    if (control?.type === "checkbox") control.checked = text === "yes";
    else if (control) control.value = text;
    if (control?.selectedIndex < 0) control.value = before;      // no such option
  }
}

function show(plan) {
  answer.innerHTML = plan(JSON.stringify(Object.fromEntries(texts())));
  const changed = texts().filter(([name, text]) => name !== "config" && text !== (begun.get(name) ?? ""));
  history.replaceState(null, "", "#" + new URLSearchParams(changed));
}

async function start() {
  if (location.hash) take();
  const plan = await planner();
  let waiting;
  const showSoon = () => { clearTimeout(waiting); waiting = setTimeout(show, 200, plan); };
  form.addEventListener("input", showSoon);
  form.addEventListener("submit", event => { event.preventDefault(); show(plan); });
  addEventListener("hashchange", () => { take(); show(plan); });
  show(plan);
  document.documentElement.dataset.ready = Math.round(performance.now());
}

start().catch(error => {
  say(`This page could not start: ${String(error.message ?? error).trim().split("\n").pop()}`);
  console.error(error);
});
