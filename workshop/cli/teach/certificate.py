from __future__ import annotations

from pathlib import Path

import click

from workshop.cli.say import force_option, say


@click.command
@click.argument("file", type=click.Path(path_type=Path), default="certificate.html")
@force_option()
def command(file: Path, force: bool) -> None:
    """Write a page to keep: what you have done, your predictions that came true, your cards.

    FILE is one page of HTML [certificate.html]; a browser prints it as PDF.
    """
    from workshop.course.progress import certificate
    from workshop.files import check_output

    check_output(file, force=force)
    say(f"✓ {certificate.write(file)}", fg="green")
