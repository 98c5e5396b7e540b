// Starts Python in this page: everything that it needs is in the page itself, so it also works from a file.
const HERE = "http://in-this-page.invalid/";      // never asked: `fetch` below answers for it
const say = words => { document.getElementById("state").textContent = words; };

const outside = globalThis.fetch;

async function unpacked(id) {
  const packed = await outside(`data:;base64,${document.getElementById(id).textContent}`);
  return new Response(packed.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

const asModule = async id =>
  import(URL.createObjectURL(new Blob([await unpacked(id)], { type: "text/javascript" })));

globalThis.fetch = async (what, ...more) => {
  const asked = String(what.url ?? what);
  if (!asked.startsWith(HERE)) return outside(what, ...more);
  const [id, type] = asked.endsWith(".wasm") ? ["wasm", "application/wasm"] : ["stdlib", "application/zip"];
  return new Response(await unpacked(id), { headers: { "Content-Type": type } });
};

// The teaching model, on pages that have it: its files lie in the page by their names.
async function model() {
  const names = [...document.querySelectorAll("script.model")].map(({ id }) => id);
  if (!names.length) return {};
  const [{ teachingModel }, ...bytes] = await Promise.all([asModule("llama"), ...names.map(unpacked)]);
  return globalThis.teachingModel = teachingModel(Object.fromEntries(names.map((name, at) => [name, bytes[at]])));
}

async function start() {
  if (typeof WebAssembly !== "object" || typeof DecompressionStream !== "function")
    throw new Error("This browser cannot run Python (no WebAssembly or no DecompressionStream). Use a newer one: Chromium or Edge 120, Firefox 120, Safari 17.");
  say("Python starts …");
  const [{ loadPyodide }, made, ours, engine] =
    await Promise.all([asModule("loader"), asModule("module"), unpacked("ours"), model()]);
  const python = await loadPyodide({
    indexURL: HERE, createPyodideModule: made.default, lockFileContents: new TextDecoder().decode(await unpacked("lock")), packageBaseUrl: HERE,
  });
  say("The course's code is read …");
  python.registerJsModule("engine", engine);
  python.unpackArchive(ours, "zip", { extractDir: "/workshop" });
  await python.runPythonAsync(`
import sys
sys.path[:0] = ["/workshop", "/workshop/stand_ins"]
import page
await page.start(${JSON.stringify(document.body.dataset.page)})
`);
  say("");
  document.documentElement.dataset.ready = Math.round(performance.now());
}

start().catch(error => {
  const last = String(error.message ?? error).trim().split("\n").pop();
  say(`This page could not start: ${last}`);
  console.error(error);
});
