import sys

import click

from workshop.cli.say import json_option, say, say_json

WIDEST_NAME = 26  # of a check; a longer one, of a server, moves its own line


@click.command
@json_option('{"ok": bool, "checks": [{"name", "state", "found", "remedy"}]}')
def command(as_json: bool) -> None:
    """Examine this machine or cluster. Exit code 0 if nothing that the course needs is lacking."""
    from dataclasses import asdict

    from workshop.lab import doctor

    checks = doctor.examine()
    lacks = 0
    for check in checks:
        if check.state == doctor.LACK:
            lacks += 1
    if as_json:
        say_json({"ok": not lacks, "checks": [asdict(check) for check in checks]})
    else:
        signs = {doctor.OK: ("✓", "green"), doctor.NOTE: ("·", "yellow"), doctor.LACK: ("✗", "red")}
        width = min(WIDEST_NAME, max(len(check.name) for check in checks))
        for check in checks:
            sign, colour = signs[check.state]
            say(f"{sign} {check.name:<{width}}  ", fg=colour, nl=False)
            say(check.found)
            if check.remedy and check.state != doctor.OK:
                say(f"{'':{width + 4}}→ {check.remedy}")
        ending = "Everything that the course needs is here."
        if lacks:
            ending = f"{lacks} lacking: see the ✗ above."
        say(f"\n{ending}")
    if lacks:
        sys.exit(1)
