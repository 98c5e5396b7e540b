import click

from workshop.cli.say import say
from workshop.errors import BadInput


@click.command
@click.argument("name")
@click.option("--group", help="Unix group of the class; its members can read the shared record.")
@click.option("--to", "folder", help="Folder that all of them see; by default $WORKSHOP_SHARED.")
@click.option("--stop", is_flag=True, help="Take the shared copies of the record back.")
def command(name: str, group: str | None, folder: str | None, stop: bool) -> None:
    """Share the server NAME with a class.

    A copy of its record goes into a shared folder (mode 0640, with the class's group).

    Learners set WORKSHOP_SHARED to that folder, and `workshop.connect()` finds the server.
    """
    from workshop.servers import records
    from workshop.servers.records import share

    if stop:
        removed = records.withdraw(name)
        noun = "copies"
        if len(removed) == 1:
            noun = "copy"
        copies = f"{len(removed)} shared {noun} of {name}"
        say(
            f"✓ {copies} removed. Who has read it knows the key still: stop the server to shut them out."
        )
        return
    if not group:
        raise BadInput("No group is given.", "Say for whom: --group NAME (`id -nG` lists yours).")
    path, notes = share.share(name, group, folder)
    say(f"✓ {path} (for the group {group})", fg="green")
    say(f"Learners: export WORKSHOP_SHARED={path.parent}, then workshop.connect()")
    for note in notes:
        say(f"· {note}")
