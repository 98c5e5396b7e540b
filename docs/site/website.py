"""Render the course to HTML that reads well without a kernel: `make site`.

    python docs/site/website.py [--to site] [--only 00_start …] [--home FOLDER] [--saved] [--live | --no-live] [--fresh]

Each notebook is run (on a server of its own, which is stopped afterwards) and becomes one page without scripts and
without any request to elsewhere: widgets appear with their first state, solutions behind a fold. Beside them lie the
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
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
import summary_cards
from live import pages
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html
from static_page import local_links, neighbours, page, with_formulas, with_pictures
from static_widgets import VIEW, Widgets

from workshop import install_words
from workshop.cli.say import Bar
from workshop.course.progress.course_map import Chapter, CourseMap, chapters
from workshop.errors import WorkshopError
from workshop.servers.progress import TaskProgress

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))
CELL_TIMEOUT_S = 600
AT_ONCE = 2  # notebooks: most wait for the server, or for an import
# They start a second engine, or measure time.
ALONE = ("06_many_prompts", "11_inside_the_engine", "12_guess_and_check", "14_agents")
LOOK_S = 1.0  # between two looks at the progress
_drawing = threading.Lock()  # matplotlib, which draws the formulas, is for one thread at a time
_kernels: set[int] = set()  # processes of the notebooks that run
SOURCES = (".py", ".toml", ".css", ".json", ".js")  # of what a page is made
INSTALLED = {"node_modules", "tools"}  # what npm and pip put below docs/site: it makes no page
COLOR = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal, in a notebook's error
TYPICAL_S = 45.0  # of a notebook that is not in SECONDS
SAVED_S = 1.0  # of one that is not run
# Seconds of each notebook on two quiet cores, measured; only the estimate needs them.
SECONDS: dict[str, float] = {
    "00_start": 18,
    "01_memory": 19,
    "03_server": 15,
    "06_many_prompts": 101,
    "07_offline_batching": 94,
    "08_elsewhere": 18,
    "11_inside_the_engine": 104,
    "13_scale_out": 90,
    "14_agents": 150,
}
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
    together = [item for item in due if item[1].name not in ALONE]
    alone = [item for item in due if item[1].name in ALONE]
    estimate = Estimate([chapter.name for _, chapter, _ in due], run)

    def build(item: tuple[int, Chapter, str]) -> str:
        """Write the page of one notebook; return its name."""
        number, chapter, stamp = item
        body = render(chapter, run=run)
        text = page(chapter.title, body, **neighbours(everything, number))
        write(options.to, chapter.name, text + stamp)
        return chapter.name

    done = 0
    try:
        with server(options.home, needed=run), Bar("Notebooks") as bar:
            for items, at_once in ((together, AT_ONCE), (alone, 1)):
                for name in in_threads(build, items, at_once, lambda: bar(estimate.progress())):
                    estimate.finished(name)
                    done += 1
    except WorkshopError as error:
        print(f"✗ {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
    if done < len(due):
        left = len(due) - done
        print(f"{left} of {len(wanted)} notebooks are missing; the same command goes on with them.")
        return 1
    return 0


def in_threads(build, items: list, at_once: int, look: Callable[[], None]) -> Iterator[str]:
    """Yield what `build` returns for each item, some of them at once; call `look` every second meanwhile.

    An interruption, or an error of one of them, ends the kernels of the others.
    """
    with ThreadPoolExecutor(at_once) as pool:
        left = list(items)
        waiting: set[Future[str]] = set()
        try:
            while left or waiting:
                while left and len(waiting) < at_once:
                    waiting.add(pool.submit(build, left.pop(0)))
                look()
                finished, waiting = wait(waiting, LOOK_S, return_when=FIRST_COMPLETED)
                # what is done counts, also if another one failed in the same second
                for future in sorted(
                    finished, key=lambda completed: completed.exception() is not None
                ):
                    yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for pid in list(_kernels):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise


class Estimate:
    """Return how long the rest takes: the seconds measured once, times how much slower this machine has been so far."""

    def __init__(self, names: list[str], run: bool):
        self._count = len(names)
        self._left = list(names)
        self._run = run
        self._all_s = sum(map(self._expected_s, names))
        self._began = time.monotonic()

    def _expected_s(self, name: str) -> float:
        if not self._run:
            return SAVED_S
        seconds = SECONDS.get(name, TYPICAL_S)
        if name in ALONE:
            return seconds
        return seconds / AT_ONCE

    def finished(self, name: str) -> None:
        """Record that a notebook is done."""
        self._left.remove(name)

    @property
    def fraction(self) -> float:
        """The part of the work that is done, from 0 to 1."""
        return 1 - sum(map(self._expected_s, self._left)) / self._all_s

    @property
    def left_s(self) -> float:
        """The seconds that are probably left."""
        left_s = sum(map(self._expected_s, self._left))
        done_s = self._all_s - left_s
        if not done_s:
            return left_s
        return left_s * (time.monotonic() - self._began) / done_s

    def progress(self) -> TaskProgress:
        """Return how far the work is, with the time that is left."""
        done = self._count - len(self._left)
        return TaskProgress(self.fraction, f"{done} of {self._count} are built, {self}")

    def __str__(self) -> str:
        minutes = max(1, round(self.left_s / 60))
        return f"about {minutes} {'minute' if minutes == 1 else 'minutes'} left"


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
    first = execute(notebook, path) if run else {}
    with _drawing:
        return html_of(notebook, first)


def html_of(notebook: nbformat.NotebookNode, first: dict[str, str]) -> str:
    """Return the HTML of a notebook's cells; `first`: of widgets as they were shown first."""
    draw_widgets(notebook, first)
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
            key: {"model_name": widget_state["_model_name"], "state": widget_state}
            for key, widget_state in client.widget_state.items()
        }
        for model_id in views(cell):
            first.setdefault(model_id, Widgets(state, output_html).html(model_id))

    own_kernels: set[int] = set()

    def note_kernel(cell: nbformat.NotebookNode, cell_index: int) -> None:
        own_kernels.add(client.km.provisioner.pid)
        _kernels.update(own_kernels)

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        on_cell_start=note_kernel,
        on_cell_executed=keep,
        resources={"metadata": {"path": str(path.parent)}},
    )
    # Over sockets of this user's: over TCP each kernel warns that others on this machine could listen.
    with tempfile.TemporaryDirectory(prefix="workshop-kernel-") as folder:
        kernel = client.create_kernel_manager()
        kernel.transport = "ipc"
        kernel.ip = str(Path(folder) / "kernel")
        try:
            client.execute()
        except Exception as error:
            reason = last_line(error)
            raise WorkshopError(
                f"{path.name} does not run: {reason}", "Mend that cell first."
            ) from None
        finally:
            _kernels.difference_update(own_kernels)
    return first


def last_line(error: Exception) -> str:
    """Return the last line of an error's text without its colors; its kind, if it has no text."""
    lines = COLOR.sub("", str(error)).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[-1][:300]


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
