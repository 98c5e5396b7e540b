"""Render the course to HTML that reads well without a kernel: `make site`.

    python docs/site/website.py [--to site] [--only 00_start …] [--home FOLDER] [--saved] [--live | --no-live] [--fresh]

Each notebook is run (on a server of its own, which is stopped afterwards) and becomes one page without scripts and
without any request to elsewhere: widgets appear in their static form, solutions behind a fold. Beside them lie the
planner and the X-ray (live/pages.py); --live builds these alone. A build that was stopped goes on where
it stopped: a page is built anew only if its notebook or the code behind it changed.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import os
import re
import signal
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import nbformat
import summary_cards
from live import pages
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html
from static_page import local_links, neighbours, page, with_formulas, with_pictures

from workshop import install_words
from workshop.course.progress.course_map import Chapter, CourseMap, chapters
from workshop.errors import WorkshopError

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))
CELL_TIMEOUT_S = 600
VIEW = "application/vnd.jupyter.widget-view+json"
SOURCES = (".py", ".toml", ".css", ".json", ".js")  # of what a page is made
INSTALLED = {"node_modules", "tools"}  # what npm and pip put below docs/site: it makes no page
COLOR = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal, in a notebook's error
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
    parser.add_argument("--live", action="store_true", help="build the planner and the X-ray alone")
    parser.add_argument(
        "--no-live",
        action="store_true",
        help="leave the planner and the X-ray out (no npm is needed)",
    )
    parser.add_argument(
        "--saved", action="store_true", help="do not run the notebooks: take them as they are saved"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="build also the notebooks whose pages are there"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as Ctrl-C does
    everything = chapters()
    wanted = options.only or [chapter.name for chapter in everything]
    if unknown := set(wanted) - {chapter.name for chapter in everything}:
        parser.error(
            f"there is no notebook {', '.join(sorted(unknown))}; there are: {', '.join(chapter.name for chapter in everything)}"
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
    write_index(options.to, everything, built)  # so that a build that is stopped has one, too
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        body = with_pictures(f'<div class="markdown">{markdown2html(text)}</div>', path.parent)
        write(options.to, path.stem, page(title_of(path), body))
    cards = summary_cards.cards(everything)
    write(options.to, summary_cards.NAME, page(summary_cards.TITLE, summary_cards.body(cards)))
    code = write_notebooks(options, everything, wanted)
    if code:
        return code
    print(f"✓ {options.to / 'index.html'}")
    return 0 if complete else 1


def write_index(folder: Path, everything: list[Chapter], built: list[Path]) -> None:
    """Write the first page; `built`: the planner and the X-ray, if they are there."""
    names = [path.stem for path in built] + [path.name for path in folder.glob("lite")]
    write(folder, "index", page("Distributed LLM inference with vLLM", front(everything, names)))


def write_notebooks(
    options: argparse.Namespace, everything: list[Chapter], wanted: list[str]
) -> int:
    """Write the pages of the notebooks that are not there yet, or are older than their sources; return the exit code."""
    run = not options.saved
    sources = digest_of_sources()
    due: list[tuple[int, Chapter, str]] = []
    for number, chapter in enumerate(everything):
        stamp = stamp_of(chapter, sources, run)
        if chapter.name in wanted and (options.fresh or not is_built(options.to, chapter, stamp)):
            due.append((number, chapter, stamp))
    there = len(wanted) - len(due)
    if there:
        print(f"{there} of {len(wanted)} notebooks are there already (--fresh: build them anew).")
    if not due:
        return 0
    done = 0
    try:
        with server(options.home, needed=run):
            for number, chapter, stamp in due:
                text = page(
                    chapter.title, render(chapter, run=run), **neighbours(everything, number)
                )
                write(options.to, chapter.name, text + stamp)
                done += 1
                print(f"✓ {chapter.name} ({done} of {len(due)})", flush=True)
    except WorkshopError as error:
        print(f"✗ {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
    if done < len(due):
        left = len(due) - done
        print(f"{left} of {len(wanted)} notebooks are missing; the same command goes on with them.")
        return 1
    return 0


def digest_of_sources() -> str:
    """Return a digest of everything beside its notebook that a page is made of."""
    digest = hashlib.sha256()
    folders = (ROOT / "workshop", ROOT / "planner" / "inference_planner", Path(__file__).parent)
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            parts = path.relative_to(folder).parts
            if path.suffix in SOURCES and not INSTALLED.intersection(parts):
                digest.update(path.read_bytes())
    digest.update(repr([chapter.title for chapter in chapters()]).encode())
    return digest.hexdigest()


def stamp_of(chapter: Chapter, sources: str, run: bool) -> str:
    """Return the comment at the end of a page, which says what it was made of."""
    notebook = (install_words.course_folder() / f"{chapter.name}.ipynb").read_bytes()
    digest = hashlib.sha256(notebook + sources.encode() + str(run).encode()).hexdigest()
    return f"<!-- made of {digest} -->\n"


def is_built(folder: Path, chapter: Chapter, stamp: str) -> bool:
    """Return True if a notebook's page is there, whole, and of these sources."""
    path = folder / f"{chapter.name}.html"
    return path.is_file() and path.read_text(encoding="utf-8").endswith(stamp)


@contextmanager
def server(home: Path | None, needed: bool):
    """Give the notebooks a WORKSHOP_HOME with a server in it; what was started here is stopped again."""
    from workshop.servers import local, records
    from workshop.servers.local import supervise

    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="workshop-site-") as folder:
        os.environ["WORKSHOP_HOME"] = str(home or Path(folder) / "home")
        os.environ["WORKSHOP_STRICT"] = "1"
        for variable in ("WORKSHOP_URL", "WORKSHOP_API_KEY", "WORKSHOP_SHARED"):
            os.environ.pop(variable, None)
        started = None
        try:
            if needed and not any(record.state == "ready" for record in records.own()):
                print("Starting a server …", flush=True)
                started = supervise.start(local.prepare()).name
            yield
        finally:
            if started:
                supervise.stop(started)
            os.environ.clear()
            os.environ.update(before)


def render(chapter: Chapter, run: bool) -> str:
    """Return the HTML of one notebook's cells.

    Raises:
        WorkshopError: one of its cells fails.
    """
    path = install_words.course_folder() / f"{chapter.name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    if run:
        execute(notebook, path)
    return html_of(notebook)


def html_of(notebook: nbformat.NotebookNode) -> str:
    """Return the HTML of a notebook's cells."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = with_formulas(cell.source)
        for output in cell.get("outputs", ()):
            if VIEW in output.get("data", {}):
                show_static_form(output["data"])
    notebook.metadata.pop("widgets", None)  # else nbconvert writes all their states into a script
    body, _ = exporter().from_notebook_node(notebook)
    note = (
        '<p class="note">A picture of the notebook: it was run, and its widgets show their first state. To move '
        "them, and to answer, open it in JupyterLab: <code>make workshop</code>.</p>"
    )
    return note + body


@cache
def exporter() -> HTMLExporter:
    """Return what renders notebooks; making it compiles its templates, which takes longest."""
    return HTMLExporter(raw_template=TEMPLATE, exclude_output_prompt=True)


def show_static_form(data: dict[str, str]) -> None:
    """Leave of a widget's output the form that it gives to pages without widgets, HTML or text."""
    del data[VIEW]
    if "text/html" in data:
        shown = f'<div class="widget"><p>Interactive in JupyterLab</p>{data["text/html"]}</div>'
        data["text/html"] = shown


def execute(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Run a notebook in place, in its own folder."""
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    # Over sockets of this user's: over TCP each kernel warns that others on this machine could listen.
    with tempfile.TemporaryDirectory(prefix="workshop-kernel-") as folder:
        kernel = client.create_kernel_manager()
        kernel.transport = "ipc"
        kernel.ip = str(Path(folder) / "kernel")
        try:
            client.execute()
        except AssertionError:  # nbclient's own, after Ctrl-C has stopped its kernel
            raise KeyboardInterrupt from None
        except Exception as error:
            reason = last_line(error)
            raise WorkshopError(
                f"{path.name} does not run: {reason}", "Mend that cell first."
            ) from None
        finally:
            # nbclient, which stops its kernel at these signals, has left them without a handler
            signal.signal(signal.SIGTERM, signal.default_int_handler)


def last_line(error: Exception) -> str:
    """Return the last line of an error's text without its colors; its kind, if it has no text."""
    lines = COLOR.sub("", str(error)).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[-1][:300]


def title_of(path: Path) -> str:
    """Return a document's heading."""
    return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")


def front(everything: list[Chapter], built: list[str]) -> str:
    """Return the first page: what it is, the map, and what else there is to read."""
    path = CourseMap(tuple(everything), frozenset())
    documents = "".join(
        f'<li><a href="{document.stem}.html">{html.escape(title_of(document))}</a></li>'
        for document in DOCUMENTS
    )
    live = "".join(
        f'<li><a href="{name}.html">{html.escape(title)}</a>: {html.escape(about)}</li>'
        for name, (title, about) in pages.PAGES.items()
        if name in built
    )
    if "lite" in built:
        live += '<li><a href="lite/lab/index.html?path=00_start.ipynb">The whole course in JupyterLab</a>, from a web server: Python and the model run in your browser.</li>'
    documents = f'<li><a href="{summary_cards.NAME}.html">{summary_cards.TITLE}</a>, to print on two pages</li>{documents}'
    live = live and f"<h2>To try here, in your browser</h2><ul>{live}</ul>"
    return (
        "<h1>Distributed LLM inference with vLLM</h1><p>A workshop in notebooks: from the memory arithmetic to a "
        "405B server on a SLURM cluster. These pages show the notebooks as they ran, on vLLM on a CPU with a small "
        "Llama; nothing here needs a kernel or a network. To do the course, get the repository and run "
        f"<code>make workshop</code>.</p>{path._repr_html_()}{live}<h2>To look things up</h2><ul>{documents}</ul>"
    )


def write(folder: Path, name: str, text: str) -> None:
    """Write one page, its links leading to pages."""
    names = [
        *(chapter.name for chapter in chapters()),
        *(path.stem for path in DOCUMENTS),
        *pages.PAGES,
        summary_cards.NAME,
        "index",
    ]
    (folder / f"{name}.html").write_text(local_links(text, names), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
