"""`workshop fresh NOTEBOOK`: start one notebook again."""

import click


@click.command
@click.argument("notebook")
def command(notebook: str) -> None:
    """Put a fresh copy of NOTEBOOK (01_memory) in place; yours is kept beside it."""
    from workshop.launch.local import course

    copy, kept = course.fresh(notebook)
    click.echo(f"✓ {copy} is fresh." + (f" Yours is kept as {kept.name}." if kept else ""))
