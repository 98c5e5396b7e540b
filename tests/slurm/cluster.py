"""The test bed as tests use it: commands on its hosts, jobs, and what they leave (the hosts themselves: machines)."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from machines import NODES, Machines, children, what_is_missing

__all__ = ["SMALL", "UNENDED", "Cluster", "Job", "doctor", "what_is_missing", "workshop"]

UNENDED = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}  # states of a job that is not over
# Lines of a site whose nodes start the small engine in vLLM's place
SMALL = f"export PYTHONPATH={Path(__file__).parent / 'small'}"


class Cluster(Machines):
    """The test bed; `up` and `down`, and in between `run` commands on its hosts."""

    @contextlib.contextmanager
    def file(self, path: str, text: str) -> Iterator[None]:
        """Let every host have a file at `path`, in a folder of /etc that this machine does not have."""
        folder, place = Path(path).parent, self.bed / "etc/only-here"
        made = not folder.exists()
        folder.mkdir(exist_ok=True)
        place.mkdir()
        (place / Path(path).name).write_text(text)
        (self.bed / "etc/folder").write_text(str(folder))
        try:
            for node in NODES:  # those that run see it at once, the others when they are entered
                self.inside(node, "mount", "--bind", str(place), str(folder))
            yield
        finally:
            for node in NODES:
                self.inside(node, "umount", str(folder))
            (self.bed / "etc/folder").unlink()
            shutil.rmtree(place)
            if made:
                folder.rmdir()

    def spawn(self, host: str, *command: str) -> subprocess.Popen:
        """Start a program on a host that stays until it is ended, or the cluster is."""
        process = subprocess.Popen(
            [*self._enter(host), *command],
            env=self._env(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._extra.append(process)
        return process

    def note(self, seconds: float, says: str) -> None:
        """Write down how long something of the current test took."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0].removeprefix("tests/slurm/")
        self.ends.append({"test": test, "seconds": round(seconds, 1), "says": says})

    def submit(
        self,
        script: str,
        *options: str,
        site: str = "",
        user: str = "teacher",
        args: tuple[str, ...] = (),
        **env: str,
    ) -> Job:
        """`source slurm/site.sh && sbatch OPTIONS slurm/SCRIPT ARGS` in the course; `site`: more lines of site.sh."""
        if site:
            (self.course / "site-extra.sh").write_text(
                (self.course / "slurm/site.sh").read_text() + f"\n{site}\n"
            )
            env["WORKSHOP_SITE"] = str(self.course / "site-extra.sh")
        line = 'source "${WORKSHOP_SITE:-slurm/site.sh}" && sbatch --parsable "$@"'
        out = self.run(
            "login",
            "bash",
            "-c",
            line,
            "sbatch",
            *options,
            f"slurm/{script}",
            *args,
            user=user,
            cwd=self.course,
            env=env,
        )
        return Job(self, int(out.strip().splitlines()[-1]))

    def processes(self, node: str) -> dict[int, str]:
        """Return {pid: command line} of what runs on a node beside SLURM itself."""
        pids = subprocess.run(
            ["ip", "netns", "pids", self._netns(node)], capture_output=True, text=True
        ).stdout
        command_lines = {}
        for pid in map(int, pids.split()):
            with contextlib.suppress(OSError):
                command_line = (
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                )
                if command_line and not command_line.startswith(
                    ("slurmd", "slurmstepd", "unshare", "env NEW_PID")
                ):
                    command_lines[pid] = command_line
        return command_lines

    def inside(self, node: str, *command: str) -> str:
        """Run a command in the very namespaces of a node's slurmd: its /tmp, /dev/shm and processes."""
        daemon = children(self._daemons[node].pid)[0]
        done = subprocess.run(
            ["nsenter", "-t", str(daemon), "-m", "-u", "-i", "-n", "-p", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            env=self._env(),
        )
        return done.stdout

    def leftovers(self) -> list[str]:
        """Return what a job left on the nodes: processes, shared memory, temporary files, listening ports.

        What was there when an earlier test failed is that test's, and is not told again.
        """
        left = []
        for node in NODES:
            left += [
                f"{node} process {command_line[:100]}"
                for command_line in self.processes(node).values()
            ]
            for folder in ("/dev/shm", "/tmp"):
                names = set(self.inside(node, "ls", "-A", folder).split()) - self._given(folder)
                left += [f"{node} {folder}/{name}" for name in names]
            ports = self.inside(node, "ss", "-Hltn").splitlines()
            left += [
                f"{node} port {line.split()[3]}"
                for line in ports
                if not line.split()[3].endswith(":6818")
            ]
        return [thing for thing in left if thing not in self.told]

    def wait_until_clean(self, node: str = "", within_s: float = 60.0) -> None:
        """Wait until jobs that have ended have left nothing on the nodes, or on one of them."""

        def left() -> list[str]:
            return [thing for thing in self.leftovers() if thing.startswith(node)]

        self.wait(lambda: not left(), within_s, "something is left", lambda: "\n".join(left()))

    def _given(self, folder: str) -> set[str]:
        """What stands in a host's folder because the bed put it there (an environment below /tmp)."""
        paths = [Path(line) for line in (self.bed / "paths").read_text().split()]
        return {path.relative_to(folder).parts[0] for path in paths if Path(folder) in path.parents}


class Job:
    """A job of the test bed."""

    def __init__(self, cluster: Cluster, number: int):
        self.cluster, self.id, self.submitted = cluster, number, time.monotonic()
        # or when a test did something to it: the end is counted from there
        self.since = self.submitted

    @property
    def facts(self) -> dict[str, str]:
        """`scontrol show job`, as a dict."""
        text = self.cluster.ask_slurm("scontrol", "--oneliner", "show", "job", str(self.id))
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    @functools.cached_property
    def name(self) -> str:
        return self.facts["JobName"]

    @property
    def state(self) -> str:
        return self.facts["JobState"]

    @property
    def folder(self) -> Path:
        return self.cluster.course / f"{self.name}_{self.id}"

    def text(self, kind: str = "both") -> str:
        """Return what is in output_<job>.out and error_<job>.out ("output", "error" or "both")."""
        kinds = ("output", "error") if kind == "both" else (kind,)
        paths = [self.folder / f"{stream}_{self.id}.out" for stream in kinds]
        return "\n".join(path.read_text(errors="replace") for path in paths if path.exists())

    def until(self, text: str, within_s: float = 120) -> float:
        """Wait until the text stands in the job's files; return the seconds since submission."""

        def there() -> bool:
            if text in self.text():
                return True
            assert self.state in ("PENDING", "CONFIGURING", "RUNNING"), (
                f"{self.state}:\n{self.text()[-5000:]}"
            )
            return False

        self.cluster.wait(there, within_s, f"{text!r} did not come", lambda: self.text()[-5000:])
        return time.monotonic() - self.submitted

    def until_over(self, within_s: float = 60) -> str:
        """Wait until the job has ended on all its nodes; return its last state."""
        self.cluster.wait(
            lambda: self.state not in UNENDED,
            within_s,
            f"job {self.id} did not end",
            lambda: self.text()[-5000:],
        )
        reasons = re.findall(r"^\[workshop\] ended: (.*)$", self.text("error"), re.MULTILINE)
        self.cluster.note(time.monotonic() - self.since, reasons[-1] if reasons else "")
        return self.state


def workshop(
    cluster: Cluster,
    *arguments: str,
    user: str = "teacher",
    host: str = "login",
    check: bool = True,
    cwd: Path | None = None,
    **env: str,
) -> str:
    """Run the `workshop` command as a person does in the course's folder."""
    course = {"PYTHONPATH": str(cluster.course), "WORKSHOP_SLURM": str(cluster.course / "slurm")}
    return cluster.run(
        host,
        sys.executable,
        "-m",
        "workshop",
        *arguments,
        user=user,
        check=check,
        cwd=cwd or cluster.course,
        env={**course, **env},
    )


def doctor(cluster: Cluster, **env: str) -> dict[str, dict]:
    """Return the checks of `workshop doctor` by their names."""
    out = workshop(cluster, "doctor", "--json", check=False, **env)
    return {check["name"]: check for check in json.loads(out[out.index("{") :])["checks"]}
