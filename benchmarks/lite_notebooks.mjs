// Which notebooks run in the browser's Python: every cell of each, with what `make lite` put into site/lite.
//   node benchmarks/lite_notebooks.mjs [01_memory …]        (Node 20; each notebook takes up to two minutes, 11 four)
import fs from "fs";
import path from "path";
const root = path.resolve(import.meta.dirname, "..");
const pyodide = path.join(root, "site", "lite", "static", "pyodide") + "/";
const { loadPyodide } = await import(pyodide + "pyodide.mjs");
const asked = process.argv.slice(2);
const names = fs.readdirSync(path.join(root, "notebooks")).filter(name => name.endsWith(".ipynb"))
  .map(name => name.replace(".ipynb", "")).filter(name => !asked.length || asked.includes(name)).sort();

const RUN = `
import json, sys, time, types
from pyodide.code import eval_code_async
sys.modules |= {name: types.ModuleType(name) for name in ("fcntl", "resource", "termios")}  # as JupyterLite's kernel does
from IPython.display import display
names, found, began = {"__name__": "__main__", "display": display}, [], time.time()
for cell in json.loads(cells):
    try:
        await eval_code_async(cell, names)
        found.append("")
    except BaseException as error:
        found.append(f"{type(error).__name__}: {error}".splitlines()[0][:90])
json.dumps([found, time.time() - began])
`;
console.log("| notebook | cells that run | seconds | what stops the first of the others |\n|---|---:|---:|---|");
for (const name of names) {
  const python = await loadPyodide({
    indexURL: pyodide, packages: ["distributed-inference-workshop"], stdout: () => {}, stderr: () => {},
    env: { HOME: "/home/pyodide", WORKSHOP_HOME: "/progress", WORKSHOP_STRICT: "1" },
  });
  const cells = JSON.parse(fs.readFileSync(path.join(root, "notebooks", `${name}.ipynb`))).cells;
  python.globals.set("cells", JSON.stringify(cells.filter(cell => cell.cell_type === "code").map(cell => [cell.source].flat().join(""))));
  const [found, seconds] = JSON.parse(await python.runPythonAsync(RUN));
  const stopped = found.filter(Boolean);
  console.log(`| ${name} | ${found.length - stopped.length} of ${found.length} | ${seconds.toFixed(0)} | ${stopped[0] ?? ""} |`);
  if (asked.length) for (const [number, why] of found.entries()) if (why) console.error(`  cell ${number + 1}: ${why}`);
}
