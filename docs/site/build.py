"""Render the course to HTML that reads well without a kernel: `make site`.

    python docs/site/build.py [--to site] [--only 00_start …] [--home FOLDER] [--saved] [--live | --no-live]

Each notebook is run (on a server of its own, which is stopped afterwards) and becomes one page without scripts and
without any request to elsewhere: widgets appear with their first state, solutions behind a fold. Beside them lie the
pages that are live without a kernel (live/pages.py); --live builds these alone.
"""

from __future__ import annotations

import argparse
import html
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import nbformat
from live import pages
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html
from static_page import local_links, neighbours, page, with_formulas, with_pictures
from static_widgets import VIEW, Widgets

from workshop.course.course_map import Chapter, CourseMap, chapters
from workshop.errors import WorkshopError
from workshop.servers.local import course

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))
CELL_TIMEOUT_S = 600
TEMPLATE = """
{%- extends 'basic/index.html.j2' -%}
{% block any_cell %}{% if 'solution' in cell.metadata.tags -%}
<details class="solution"><summary>Solution</summary>{{ super() }}</details>
{%- else %}{{ super() }}{% endif %}{% endblock %}
{% block markdowncell %}<div class="markdown">{{ cell.source | markdown2html | strip_files_prefix }}</div>
{% endblock %}
{% block input_group %}<div class="highlight">{{ cell.source | highlight_code(metadata=cell.metadata) }}</div>
{% endblock %}
{% block output_group %}<div class="output">{{ self.outputs() }}</div>{% endblock %}
"""


def main() -> int:
    """Build, and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=ROOT / "site", help="folder (site)")
    parser.add_argument(
        "--only", nargs="+", metavar="NOTEBOOK", help="these notebooks only, such as 00_start"
    )
    parser.add_argument(
        "--home", type=Path, help="a WORKSHOP_HOME whose server is used; by default one is started"
    )
    parser.add_argument("--live", action="store_true", help="build the live pages alone")
    parser.add_argument(
        "--no-live", action="store_true", help="leave the live pages out (no npm is needed)"
    )
    parser.add_argument(
        "--saved", action="store_true", help="do not run the notebooks: take them as they are saved"
    )
    options = parser.parse_args()
    everything = chapters()
    wanted = options.only or [one.name for one in everything]
    if unknown := set(wanted) - {one.name for one in everything}:
        parser.error(
            f"there is no notebook {', '.join(sorted(unknown))}; there are: {', '.join(one.name for one in everything)}"
        )
    options.to.mkdir(parents=True, exist_ok=True)
    complete, built = True, []
    if not options.only and not options.no_live:
        try:
            built = pages.build(options.to)
            print(*(f"✓ {path} ({path.stat().st_size / 1e6:.0f} MB)" for path in built), sep="\n")
        except pages.CannotBuild as error:
            print(f"✗ {error}", file=sys.stderr)
            complete = False
    if options.live:
        return 0 if complete else 1
    try:
        with server(options.home, needed=not options.saved):
            for number, one in enumerate(everything):
                if one.name in wanted:
                    print(f"{one.title} …", flush=True)
                    write(
                        options.to,
                        one.name,
                        page(
                            one.title,
                            render(one, run=not options.saved),
                            **neighbours(everything, number),
                        ),
                    )
    except WorkshopError as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    write(
        options.to,
        "index",
        page(
            "Distributed LLM inference with vLLM",
            front(
                everything,
                [*(path.stem for path in built), *(path.name for path in options.to.glob("lite"))],
            ),
        ),
    )
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        body = with_pictures(f'<div class="markdown">{markdown2html(text)}</div>', path.parent)
        write(options.to, path.stem, page(title_of(path), body))
    print(f"✓ {options.to / 'index.html'}")
    return 0 if complete else 1


@contextmanager
def server(home: Path | None, needed: bool):
    """Give the notebooks a WORKSHOP_HOME with a server in it; what was started here is stopped again."""
    from workshop.servers import local, records
    from workshop.servers.local import supervise

    with tempfile.TemporaryDirectory(prefix="workshop-site-") as folder:
        os.environ["WORKSHOP_HOME"] = str(home or Path(folder) / "home")
        os.environ["WORKSHOP_STRICT"] = "1"
        for variable in ("WORKSHOP_URL", "WORKSHOP_API_KEY", "WORKSHOP_SHARED"):
            os.environ.pop(variable, None)
        started = None
        if needed and not any(record.state == "ready" for record in records.own()):
            print("Starting a server …", flush=True)
            started = supervise.start(local.prepare()).name
        try:
            yield
        finally:
            if started:
                supervise.stop(started)


def render(chapter: Chapter, run: bool) -> str:
    """Return the HTML of one notebook's cells.

    Raises:
        WorkshopError: one of its cells fails.
    """
    path = course.course_folder() / f"{chapter.name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    draw_widgets(notebook, execute(notebook, path) if run else {})
    notebook.metadata.pop("widgets", None)  # else nbconvert writes all their states into a script
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = with_formulas(cell.source)
    exporter = HTMLExporter(raw_template=TEMPLATE, exclude_output_prompt=True)
    body, _ = exporter.from_notebook_node(notebook)
    note = (
        '<p class="note">A picture of the notebook: it was run, and its widgets show their first state. To move '
        "them, and to answer, open it in JupyterLab: <code>make workshop</code>.</p>"
    )
    return note + body


def execute(notebook: nbformat.NotebookNode, path: Path) -> dict[str, str]:
    """Run a notebook in place, in its own folder; return the widgets' HTML as of the cell that first showed them.

    Later cells, solutions among them, move the controls; a reader is to see what a learner sees first.
    """
    first: dict[str, str] = {}

    def keep(cell: nbformat.NotebookNode, cell_index: int, execute_reply: dict) -> None:
        state = {
            key: {"model_name": one["_model_name"], "state": one}
            for key, one in client.widget_state.items()
        }
        for model_id in views(cell):
            first.setdefault(model_id, Widgets(state, output_html).html(model_id))

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        on_cell_executed=keep,
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except Exception as error:
        raise WorkshopError(
            f"{path.name} does not run: {str(error).strip().splitlines()[-1][:300]}",
            "Mend that cell first.",
        ) from None
    return first


def views(cell: nbformat.NotebookNode) -> list[str]:
    """Return the ids of the widgets that a cell shows."""
    return [
        output["data"][VIEW]["model_id"]
        for output in cell.get("outputs", ())
        if VIEW in output.get("data", {})
    ]


def draw_widgets(notebook: nbformat.NotebookNode, first: dict[str, str]) -> None:
    """Replace every view of a widget by its HTML: the given one, else the state that the notebook was saved with."""
    saved = Widgets.of(notebook, output_html)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if VIEW in output.get("data", {}):
                model_id = output["data"][VIEW]["model_id"]
                drawn = first[model_id] if model_id in first else saved.html(model_id)
                output["data"] = {
                    "text/html": f'<div class="widget"><p>Interactive in JupyterLab</p>{drawn}</div>'
                }


def output_html(output: dict) -> str:
    """Return what an Output widget holds: HTML, a picture or text."""
    data = output.get("data", {})
    if "text/html" in data:
        return data["text/html"]
    if "image/png" in data:
        alt = html.escape(data.get("text/plain", ""), quote=True)
        return f'<img alt="{alt}" src="data:image/png;base64,{data["image/png"]}">'
    return f"<pre>{html.escape(output.get('text') or data.get('text/plain', ''))}</pre>"


def title_of(path: Path) -> str:
    """Return a document's heading."""
    return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")


def front(everything: list[Chapter], built: list[str]) -> str:
    """Return the first page: what it is, the map, and what else there is to read."""
    path = CourseMap(tuple(everything), frozenset())
    documents = "".join(
        f'<li><a href="{each.stem}.html">{html.escape(title_of(each))}</a></li>'
        for each in DOCUMENTS
    )
    live = "".join(
        f'<li><a href="{name}.html">{html.escape(title)}</a>: {html.escape(about)}</li>'
        for name, (title, about, *_) in {**pages.PAGES, "xray": pages.XRAY}.items()
        if name in built
    )
    if "lite" in built:
        live += '<li><a href="lite/lab/index.html?path=00_start.ipynb">The whole course in JupyterLab</a>, from a web server: Python and the model run in your browser.</li>'
    live = live and f"<h2>To try here, in your browser</h2><ul>{live}</ul>"
    return (
        "<h1>Distributed LLM inference with vLLM</h1><p>A workshop in notebooks: from the memory arithmetic to a "
        "405B server on a SLURM cluster. These pages show the notebooks as they ran, on vLLM on a CPU with a small "
        "Llama; nothing here needs a kernel or a network. To do the course, get the repository and run "
        f"<code>make workshop</code>.</p>{path._repr_html_()}{live}<h2>To look things up</h2><ul>{documents}</ul>"
    )


def write(folder: Path, name: str, text: str) -> None:
    """Write one page, its links leading to pages."""
    known = [
        *(one.name for one in chapters()),
        *(path.stem for path in DOCUMENTS),
        *pages.PAGES,
        "xray",
        "index",
    ]
    (folder / f"{name}.html").write_text(local_links(text, known), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
