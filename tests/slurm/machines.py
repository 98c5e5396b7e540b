"""A real SLURM of one controller and two nodes on this machine, each host in Linux namespaces of its own.

Controller ("login"), two nodes with four fake GPUs each, and a host of a learner ("notebook") have their own
network, host name, hosts file, /tmp and /dev/shm; nodes also their own processes.
Needs root, slurm-wlm, munge, iproute2.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
HOSTS = {
    "login": "10.77.0.10",
    "node01": "10.77.0.11",
    "node02": "10.77.0.12",
    "notebook": "10.77.0.20",
}
NODES = ("node01", "node02")
USERS = {"teacher": 7001, "learner": 7002, "stranger": 7003}
CLASS_GROUP, CLASS_GID = "class", 7100
MODEL_NAME = "teaching-model"
GPUS_PER_NODE = 4
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare")
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def what_is_missing() -> str:
    """Return in a few words why the test bed cannot run here ('' if it can)."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "the SLURM test bed needs root on Linux"
    absent = [name for name in PROGRAMS if not shutil.which(name, path=SEARCH)]
    if absent:
        return f"the SLURM test bed needs {', '.join(absent)}: apt-get install slurm-wlm munge iproute2"
    probe = subprocess.run(
        ["unshare", "-u", "-m", "-i", "-p", "-n", "-f", "true"], capture_output=True, text=True
    )
    return (
        f"the SLURM test bed needs namespaces: {probe.stderr.strip()}" if probe.returncode else ""
    )


class Machines:
    """The hosts of the test bed: `up` and `down`."""

    repository = REPOSITORY

    def __init__(self, model: Path):
        self.source, self.tag = model, f"wb{os.getpid()}"
        self.bed = Path(tempfile.mkdtemp(prefix="workshop-slurm-", dir="/var/tmp"))
        self.course = self.bed / "course"
        self._daemons: dict[str, subprocess.Popen] = {}
        self._extra: list[subprocess.Popen] = []
        self._lock: int | None = None
        self.told: set[str] = set()  # what tests that failed have left
        self.ends: list[
            dict
        ] = []  # of each job: the test, the seconds from its start or fault to its end, what it says

    # ---- up and down

    def up(self) -> None:
        """Bring the cluster up; return when both nodes are idle. One at a time: their cgroups have the same names."""
        self._lock = os.open("/var/tmp/workshop-slurm.lock", os.O_CREAT | os.O_WRONLY, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.bed.chmod(0o755)
        for part in ("etc", "munge", "state", "log", "dev", "hosts", "aside", "home", "bin"):
            (self.bed / part).mkdir()
        self.model = shutil.copytree(self.source, self.bed / "models" / MODEL_NAME)
        for path in (self.model, *self.model.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        self._network()
        self._files()
        self._munge()
        self._start("login", "slurmctld", "-D", "-i")
        for node in NODES:
            self._start(node, "slurmd", "-D", "-N", node)
        self.wait(
            lambda: self.ask_slurm("sinfo", "-h", "-o", "%T %D", check=False).strip() == "idle 2",
            60,
            "the cluster did not come up",
            self._logs,
        )

    def down(self) -> None:
        """End everything that was started, by its own process ids and namespaces, and remove what was written."""
        for process in self._extra:
            process.terminate()
        for process in reversed(self._daemons.values()):
            # unshare itself does not pass signals on
            for pid in children(process.pid) or [process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        for process in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)
            process.kill()
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.bed / "munge/munged.pid").read_text()), signal.SIGTERM)
        for host in HOSTS:
            pids = subprocess.run(
                ["ip", "netns", "pids", self._netns(host)], capture_output=True, text=True
            ).stdout
            for pid in pids.split():  # everything in these network namespaces was started here
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", self._netns(host)], capture_output=True)
        shutil.rmtree(self.bed, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def _netns(self, host: str) -> str:
        return f"{self.tag}-{host}"

    def _network(self) -> None:
        def ip(*arguments: str) -> None:
            subprocess.run(["ip", *arguments], check=True)

        for host in HOSTS:
            ip("netns", "add", self._netns(host))
            ip("-n", self._netns(host), "link", "set", "lo", "up")
        hub = self._netns("login")
        ip("-n", hub, "link", "add", "br0", "type", "bridge")
        ip("-n", hub, "addr", "add", f"{HOSTS['login']}/24", "dev", "br0")
        ip("-n", hub, "link", "set", "br0", "up")
        for host, address in list(HOSTS.items())[1:]:
            ip(
                "-n",
                hub,
                "link",
                "add",
                f"v{host}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                self._netns(host),
            )
            ip("-n", hub, "link", "set", f"v{host}", "master", "br0", "up")
            ip("-n", self._netns(host), "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", self._netns(host), "link", "set", "eth0", "up")
            ip("-n", self._netns(host), "route", "add", "default", "via", HOSTS["login"])

    def _files(self) -> None:
        etc, fill = (
            self.bed / "etc",
            {"BED": str(self.bed), "PYTHON": sys.executable, "MODEL": str(self.model)},
        )
        for source in (HERE / "bed").iterdir():
            text = source.read_text()
            for name, value in {**fill, **self._site()}.items():
                text = text.replace(f"@{name}@", value)
            target = (
                self.bed / "bin" / source.name if source.name == "nvidia-smi" else etc / source.name
            )
            target.write_text(text)
        (self.bed / "bin/nvidia-smi").chmod(0o755)
        names = [f"{address} {host}" for host, address in HOSTS.items()]
        (etc / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        users = [
            f"{name}:x:{uid}:{uid}::{self.bed}/home/{name}:/bin/bash" for name, uid in USERS.items()
        ]
        (etc / "passwd").write_text(
            "\n".join([Path("/etc/passwd").read_text().rstrip(), *users, ""])
        )
        groups = [f"{name}:x:{uid}:" for name, uid in USERS.items()]
        groups.append(f"{CLASS_GROUP}:x:{CLASS_GID}:teacher,learner")
        (etc / "group").write_text(
            "\n".join([Path("/etc/group").read_text().rstrip(), *groups, ""])
        )
        for name, uid in USERS.items():
            (self.bed / "home" / name).mkdir(mode=0o700)
            os.chown(self.bed / "home" / name, uid, uid)
        (self.bed / "class").mkdir()
        os.chown(self.bed / "class", USERS["teacher"], CLASS_GID)
        (self.bed / "class").chmod(0o2750)
        for number in range(GPUS_PER_NODE):
            os.mknod(self.bed / f"dev/nvidia{number}", 0o666 | 0o020000, os.makedev(195, number))
        self._course()
        self._paths()

    def _course(self) -> None:
        """The scripts as they are, with this site's site.sh: what a user has after editing the one file."""
        shutil.copytree(REPOSITORY / "slurm", self.course / "slurm")
        shutil.move(self.bed / "etc/site.sh", self.course / "slurm/site.sh")
        (self.course / "workshop").symlink_to(REPOSITORY / "workshop")
        os.chown(self.course, USERS["teacher"], USERS["teacher"])

    def _paths(self) -> None:
        """What hosts must see although it may lie below a folder that they have their own of, or may not enter."""
        needed = {Path(sys.prefix), Path(sys.base_prefix), REPOSITORY}
        needed = {path for path in needed if not any(other in path.parents for other in needed)}
        covers = {Path("/tmp")}
        for path in needed:
            closed = [parent for parent in path.parents if not parent.stat().st_mode & 0o001]
            covers |= set(closed[-1:])
        covers |= {Path(os.path.realpath(cover)) for cover in covers}
        hidden = [path for path in needed if any(cover in path.parents for cover in covers)]
        (self.bed / "paths").write_text("".join(f"{path}\n" for path in hidden))
        (self.bed / "covers").write_text(
            "".join(f"{cover}\n" for cover in covers if cover != Path("/tmp"))
        )

    @staticmethod
    def _site() -> dict[str, str]:
        """How SLURM can follow processes here: by cgroup, as clusters do, where this machine lets us."""
        v1, v2 = Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup/cgroup.controllers")
        if os.access(v1, os.W_OK):
            return {"PROCTRACK": "proctrack/cgroup", "CGROUP": "cgroup/v1"}
        # Version 2 needs a cgroup of slurmd's own under systemd or a delegated one, which containers rarely have.
        del v2
        return {"PROCTRACK": "proctrack/linuxproc", "CGROUP": "autodetect"}

    def _munge(self) -> None:
        folder = self.bed / "munge"
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        shutil.chown(folder, "munge", "munge")
        shutil.chown(folder / "key", "munge", "munge")
        subprocess.run(
            [
                "runuser",
                "-u",
                "munge",
                "--",
                "munged",
                f"--socket={folder}/socket",
                f"--key-file={folder}/key",
                f"--pid-file={folder}/munged.pid",
                f"--log-file={folder}/munged.log",
                f"--seed-file={folder}/munged.seed",
            ],
            check=True,
        )

    def _start(self, host: str, *command: str) -> None:
        with (self.bed / "log" / f"{host}.out").open("wb") as log:
            self._daemons[host] = subprocess.Popen(
                [*self._enter(host, processes=host in NODES), *command],
                stdout=log,
                stderr=log,
                env=self._env(),
                start_new_session=True,
            )

    def _enter(self, host: str, processes: bool = False) -> list[str]:
        own = ["-i", "-p", "-f", "--kill-child"] if processes else []
        return [
            "nsenter",
            f"--net=/run/netns/{self._netns(host)}",
            "unshare",
            "-u",
            "-m",
            *own,
            "--",
            "env",
            f"NEW_PID={'yes' if processes else 'no'}",
            str(HERE / "host.sh"),
            str(self.bed),
            host,
        ]

    def _env(self, user: str = "root") -> dict[str, str]:
        home = f"{self.bed}/home/{user}" if user in USERS else "/root"
        return {
            "PATH": f"{self.bed}/bin:{SEARCH}",
            "SLURM_CONF": f"{self.bed}/etc/slurm.conf",
            "HOME": home,
            "USER": user,
            "LOGNAME": user,
            "LANG": "C.UTF-8",
        }

    def _logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-2000:]}" for path in (self.bed / "log").iterdir()
        )

    def run(
        self,
        host: str,
        *command: str,
        user: str = "root",
        cwd: Path | None = None,
        check: bool = True,
        env: dict[str, str] | None = None,
        timeout: float = 120,
    ) -> str:
        """Run a command on a host as a user; return its output (both streams)."""
        as_user = []
        if user != "root":
            uid = str(USERS[user])
            as_user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--init-groups"]
        folder = str(cwd or (self.bed / "home" / user if user in USERS else "/"))
        done = subprocess.run(
            [*self._enter(host), *as_user, "env", "-C", folder, *command],
            env={**self._env(user), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode:
            raise AssertionError(
                f"{host}: {' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}"
            )
        return done.stdout

    def ask_slurm(self, *command: str, check: bool = True) -> str:
        """Ask the controller as root, in its network alone: a host's mounts take longer than the answer."""
        network = f"--net=/run/netns/{self._netns('login')}"
        return subprocess.run(
            ["nsenter", network, *command],
            env=self._env(),
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
            check=check,
        ).stdout

    @staticmethod
    def wait(
        test: Callable[[], object], within_s: float, what: str, more: Callable[[], str] = str
    ) -> object:
        """Return the test's result once it is true; fail with `what` after within_s."""
        deadline = time.monotonic() + within_s
        while not (result := test()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} within {within_s} s\n{more()}")
            time.sleep(0.2)
        return result


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []
