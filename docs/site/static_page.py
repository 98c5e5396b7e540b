"""The look of the site: one page around a notebook's cells. No script, no font and no style from elsewhere."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from pathlib import Path

from pygments.formatters import HtmlFormatter

from workshop.course.progress.course_map import Chapter
from workshop.course.widgets import style

MATH = re.compile(r"(`+)(?:.*?)\1|(?<![\\$])\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d)", re.DOTALL)

# What a style sheet of a page knows the course's colours by, as the widgets' own does.
COLORS = "; ".join(f"--{name}: {value}" for name, value in style.NAMES.items())
CSS = f"""
:root {{ color-scheme: light dark; --jp-ui-font-color1: {style.INK}; --jp-ui-font-color2: {style.SOFT};
  --jp-layout-color1: #ffffff; --jp-layout-color2: #eef1f4; --jp-layout-color3: #d9dee3; --jp-border-color2: {style.HAIR};
  --code: #f6f8fa; --link: {style.BLUE}; }}
@media (prefers-color-scheme: dark) {{ :root {{ --jp-ui-font-color1: #e6edf3; --jp-ui-font-color2: #9da7b1;
  --jp-layout-color1: #14171b; --jp-layout-color2: #23282e; --jp-layout-color3: #3a424b; --jp-border-color2: #3a424b;
  --code: #1c2127; --link: {style.SKY}; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: {style.PANEL}; color: {style.TEXT}; font: 16px/1.6 system-ui, sans-serif; }}
header, footer {{ display: flex; flex-wrap: wrap; gap: 4px 24px; justify-content: space-between; padding: 10px 24px;
  font-size: 14px; border-bottom: 1px solid {style.LINE}; }}
footer {{ border: 0; border-top: 1px solid {style.LINE}; margin-top: 48px; }}
main {{ max-width: 860px; margin: 0 auto; padding: 8px 20px; }}
a {{ color: var(--link); text-underline-offset: 3px; }}
a:focus-visible, summary:focus-visible {{ outline: 3px solid {style.ORANGE}; outline-offset: 2px; }}
h1, h2, h3 {{ line-height: 1.25; margin: 1.6em 0 .5em; }}
h1 {{ font-size: 30px; margin-top: .8em; }} h2 {{ font-size: 22px; }} h3 {{ font-size: 18px; }}
.anchor-link {{ display: none; }}
img, svg {{ max-width: 100%; }} .output svg {{ height: auto; }}
code, pre {{ font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }}
:not(pre) > code {{ background: var(--code); border-radius: 4px; padding: 1px 4px; overflow-wrap: anywhere; }}
.highlight, .output pre, main > div > pre {{ background: var(--code); border-radius: 6px; margin: 10px 0 0; }}
.highlight pre, .output pre {{ margin: 0; padding: 10px 14px; line-height: 1.5; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: 12.5px; }}
.output {{ margin: 6px 0 18px; padding-left: 14px; border-left: 3px solid {style.LINE}; overflow-x: auto; }}
.output pre {{ background: none; padding: 4px 0; }}
table {{ border-collapse: collapse; font-size: 14px; }} th, td {{ padding: 3px 12px 3px 4px; text-align: left; }}
main > div > table, .markdown table {{ margin: 12px 0; display: block; overflow-x: auto; }}
.markdown th, .markdown td {{ border-bottom: 1px solid {style.LINE}; }}
.dataframe, .dataframe th, .dataframe td {{ border: 0; }} .dataframe th, .dataframe td {{ padding-right: 18px; }}
.dataframe tr {{ border-bottom: 1px solid {style.LINE} !important; }} .dataframe tbody th {{ color: {style.MUTED}; }}
.dataframe thead th {{ text-align: left !important; }}
blockquote {{ margin: 0; padding-left: 14px; border-left: 3px solid {style.LINE}; color: {style.MUTED}; }}
details.solution {{ margin: 14px 0; border: 1px solid {style.LINE}; border-radius: 6px; padding: 8px 14px; }}
summary {{ cursor: pointer; font-weight: 600; }}
.widget {{ border: 1px solid {style.LINE}; border-radius: 8px; padding: 12px 14px; margin: 10px 0 18px;
  overflow-x: auto; }}
.widget > p {{ margin: 0 0 8px; font-size: 12px; color: {style.MUTED}; }}
.note {{ background: var(--jp-layout-color2); border-radius: 6px; padding: 8px 14px; font-size: 14px; }}
@media (prefers-color-scheme: dark) {{ .formula {{ filter: invert(.9); }} }}
@media print {{ header, footer, .note {{ display: none; }} }}
"""


def stylesheet() -> str:
    """Return the CSS with the colours of code, light and dark."""
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    plain = ".highlight { background: var(--code) !important; }"
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n{plain}\n{CSS}"


def page(
    title: str, body: str, *, back: tuple[str, str] | None = None, on: tuple[str, str] | None = None
) -> str:
    """Return a whole page; `back` and `on` are (address, title) of the pages before and after it."""

    def link(target: tuple[str, str] | None, template: str) -> str:
        return (
            f'<a href="{target[0]}">{template.format(html.escape(target[1]))}</a>'
            if target
            else "<span></span>"
        )

    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{stylesheet()}</style></head>'
        f'<body><header><a href="index.html">Distributed LLM inference with vLLM</a>{link(on, "{} →")}</header>'
        f"<main>{body}</main><footer>{link(back, '← {}')}{link(on, '{} →')}</footer></body></html>\n"
    )


def neighbours(chapters: Sequence[Chapter], number: int) -> dict[str, tuple[str, str]]:
    """Return the pages before and after one notebook, as `page` takes them."""
    pages = {}
    if number:
        pages["back"] = (f"{chapters[number - 1].name}.html", chapters[number - 1].title)
    if number + 1 < len(chapters):
        pages["on"] = (f"{chapters[number + 1].name}.html", chapters[number + 1].title)
    return pages


def local_links(text: str, names: Sequence[str]) -> str:
    """Let links to notebooks and documents lead to their pages; what has no page becomes plain text."""

    def local(match: re.Match) -> str:
        before, address, after, content = match.groups()
        if re.match(r"https?:|mailto:|#", address):
            return match[0]
        name, _, anchor = address.partition("#")
        name = re.sub(r"\.(ipynb|md|html)$", "", name.rsplit("/", 1)[-1])
        if name not in names:
            return content
        target = f"{name}.html"
        if anchor:
            target += f"#{anchor}"
        return f'<a{before}href="{target}"{after}>{content}</a>'

    return re.sub(r'<a( [^>]*?|\s)href="([^"]*)"([^>]*)>(.*?)</a>', local, text, flags=re.DOTALL)


def with_pictures(text: str, folder: Path) -> str:
    """Put the pictures that lie beside a document into its page."""

    def embedded(match: re.Match) -> str:
        path = folder / match[2]
        if match[2].startswith(("data:", "http")) or not path.is_file():
            return match[0]
        kind = "svg+xml" if path.suffix == ".svg" else path.suffix[1:]
        return f'{match[1]}data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"'

    return re.sub(r'(<img[^>]*? src=")([^"]+)"', embedded, text)


def with_formulas(markdown: str) -> str:
    """Replace $formulas$ by pictures; code stays as it is."""
    return MATH.sub(lambda match: formula(match[2]) if match[2] else match[0], markdown)


def formula(latex: str) -> str:
    """Return a formula as an inline SVG in the colour of the text; screen readers get its LaTeX.

    Raises:
        ValueError: matplotlib's mathtext does not know a command in it.
    """
    import matplotlib
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import math_to_image

    matplotlib.rcParams["mathtext.fontset"] = "cm"
    picture = io.BytesIO()
    depth = math_to_image(f"${latex}$", picture, prop=FontProperties(size=16), dpi=72, format="svg")
    svg = re.sub(r"<metadata>.*?</metadata>", "", picture.getvalue().decode(), flags=re.DOTALL)
    height = float(re.search(r'height="([\d.]+)pt"', svg)[1])
    svg = svg.replace('style="fill: #ffffff; opacity: 0"', 'style="fill:none"')
    data = base64.b64encode(svg[svg.index("<svg") :].encode()).decode()
    return (
        f'<img class="formula" alt="{html.escape(latex, quote=True)}" src="data:image/svg+xml;base64,{data}" '
        f'style="height:{height / 14:.2f}em;vertical-align:{-depth / 14:.2f}em">'
    )
