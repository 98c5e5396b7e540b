"""Helpers of notebook 07: texts with labels, vLLM in a Python process, the teaching model.

>>> from workshop.course import nb07
>>> nb07.CAPITALS["Denver"]
'Colorado'
>>> (nb07.TEACHING_FOLDER / "config.json").is_file()
True
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from workshop import python_process
from workshop.batch import offline
from workshop.servers.local import TEACHING_FOLDER

__all__ = [
    "CAPITALS",
    "TEACHING_FOLDER",
    "TONIGHT",
    "TONIGHT_S",
    "kill_batch",
    "kill_when_written",
    "offline",
]

LOOK_S = 0.05  # between two looks at a file that grows
# The story's 2,000 abstracts on its H100, all sent at once, and the seconds that this command
# simulates. A test simulates them again.
TONIGHT = (
    "simulate llama-3.1-8b --gpu h100 --max-model-len 8192 --burst 2000 "
    "--prompt 450:550 --output 5:15"
)
TONIGHT_S = 24.0

# The capitals of the 50 states of the USA, each with its state.
CAPITALS = {
    "Montgomery": "Alabama",
    "Juneau": "Alaska",
    "Phoenix": "Arizona",
    "Little Rock": "Arkansas",
    "Sacramento": "California",
    "Denver": "Colorado",
    "Hartford": "Connecticut",
    "Dover": "Delaware",
    "Tallahassee": "Florida",
    "Atlanta": "Georgia",
    "Honolulu": "Hawaii",
    "Boise": "Idaho",
    "Springfield": "Illinois",
    "Indianapolis": "Indiana",
    "Des Moines": "Iowa",
    "Topeka": "Kansas",
    "Frankfort": "Kentucky",
    "Baton Rouge": "Louisiana",
    "Augusta": "Maine",
    "Annapolis": "Maryland",
    "Boston": "Massachusetts",
    "Lansing": "Michigan",
    "Saint Paul": "Minnesota",
    "Jackson": "Mississippi",
    "Jefferson City": "Missouri",
    "Helena": "Montana",
    "Lincoln": "Nebraska",
    "Carson City": "Nevada",
    "Concord": "New Hampshire",
    "Trenton": "New Jersey",
    "Santa Fe": "New Mexico",
    "Albany": "New York",
    "Raleigh": "North Carolina",
    "Bismarck": "North Dakota",
    "Columbus": "Ohio",
    "Oklahoma City": "Oklahoma",
    "Salem": "Oregon",
    "Harrisburg": "Pennsylvania",
    "Providence": "Rhode Island",
    "Columbia": "South Carolina",
    "Pierre": "South Dakota",
    "Nashville": "Tennessee",
    "Austin": "Texas",
    "Salt Lake City": "Utah",
    "Montpelier": "Vermont",
    "Richmond": "Virginia",
    "Olympia": "Washington",
    "Charleston": "West Virginia",
    "Madison": "Wisconsin",
    "Cheyenne": "Wyoming",
}


def kill_batch(prompts: Path, output: Path, *options: str) -> None:
    """Start `workshop batch` in a process of its own, and kill it after its first answers.

    Args:
        prompts: the file of prompts.
        output: the file that the answers are written to.
        options: of the command, such as "--max-tokens", "24".
    """
    command = python_process.command("workshop", "batch", str(prompts), str(output), *options)
    kill_when_written(command, output)


def kill_when_written(command: list[str], output: Path, size_bytes: int = 50_000) -> None:
    """Run a command, and send it signal 9 as soon as its output has this size.

    Raises:
        RuntimeError: the command ended by itself before that.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=python_process.environment(),
    )
    while not output.exists() or output.stat().st_size < size_bytes:
        if process.poll() is not None:
            raise RuntimeError("The batch ended by itself. Does the server still run?")
        time.sleep(LOOK_S)
    process.send_signal(signal.SIGKILL)
    process.wait()
