"""Build the slides: `python slides/build.py` writes HTML and PDF of each deck into slides/build, each file whole in itself.

Needs Node 18 or newer with npm, and Chromium for the PDF (CHROME_PATH; default: chromium on the PATH). The first
run installs Marp and the typefaces as slides/package-lock.json pins them.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # this checkout's workshop, installed or not
BUILD, MODULES = HERE / "build", HERE / "node_modules"
FONTS = {
    "Inter Variable": "@fontsource-variable/inter/files/inter-latin-wght-normal.woff2",
    "JetBrains Mono Variable": "@fontsource-variable/jetbrains-mono/files/jetbrains-mono-latin-wght-normal.woff2",
}


class CannotBuild(Exception):
    """What is lacking, and what to do."""


def run(*command: str, **more: str) -> None:
    """Run a command in slides/; its words are shown only where it fails."""
    done = subprocess.run(
        command, cwd=HERE, env={**os.environ, **more}, capture_output=True, text=True
    )
    if done.returncode:
        raise CannotBuild(
            f"{' '.join(command[:3])} ended with exit code {done.returncode}:\n"
            + (done.stdout + done.stderr)[-3000:].strip()
        )


def install() -> None:
    """Install what package-lock.json pins, unless it is there already."""
    installed, wanted = MODULES / ".package-lock.json", HERE / "package-lock.json"
    if not shutil.which("npx"):
        raise CannotBuild("The slides need Node 18 or newer with npm: apt-get install nodejs npm.")
    fresh = installed.exists() and installed.stat().st_mtime >= wanted.stat().st_mtime
    if fresh and (MODULES / ".bin" / "marp").exists():
        return
    run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    installed.touch()


def chromium() -> str:
    """Return the browser that prints the PDF."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = os.environ.get("CHROME_PATH") or next(filter(None, map(shutil.which, names)), None)
    if not browser:
        raise CannotBuild(
            "The PDF needs Chromium: install it, or set CHROME_PATH to it. Without: --html-only."
        )
    return browser


def theme() -> str:
    """Return the theme with its typefaces embedded."""
    faces = []
    for family, file in FONTS.items():
        data = base64.b64encode((MODULES / file).read_bytes()).decode()
        faces.append(
            f'@font-face {{ font-family: "{family}"; font-weight: 100 900; '
            f"src: url(data:font/woff2;base64,{data}) format('woff2'); }}"
        )
    return (HERE / "theme.css").read_text(encoding="utf-8") + "\n" + "\n".join(faces) + "\n"


def build(html_only: bool = False) -> list[Path]:
    """Write the decks; return the files. Raises CannotBuild."""
    import deck

    install()
    BUILD.mkdir(exist_ok=True)
    (BUILD / "theme.css").write_text(theme(), encoding="utf-8")
    for name in deck.DECKS:
        (BUILD / f"{name}.md").write_text(deck.document(name), encoding="utf-8")
        (BUILD / f"{name}_notes.md").write_text(deck.run_sheet(name), encoding="utf-8")
    marp = ("npx", "--no-install", "marp", "--no-stdin", "--config-file", "marp.config.mjs")
    documents = [f"build/{name}.md" for name in deck.DECKS]  # at once: Marp takes seconds to start
    run(*marp, *documents)
    made = [BUILD / f"{name}.html" for name in deck.DECKS]
    if not html_only:
        run(*marp, *documents, "--pdf", "--pdf-outlines", CHROME_PATH=chromium())
        made += [BUILD / f"{name}.pdf" for name in deck.DECKS]
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--html-only", action="store_true", help="leave the PDF out: no Chromium needed"
    )
    try:
        made = build(parser.parse_args().html_only)
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    import deck

    for path in made:
        print(f"{path.relative_to(HERE.parent)}  {path.stat().st_size / 1e6:.1f} MB")
    for name in deck.DECKS:
        print(
            f"{name}: {len(deck.slides(name))} slides, {sum(slide.minutes for slide in deck.slides(name)):g} minutes"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
