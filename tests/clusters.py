"""Clusters on this machine, for tests: a real SLURM in a directory of its own."""

import csv
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

DAEMONS = {
    name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("munged", "slurmctld", "slurmd")
}
NO_SLURM = "no SLURM on this machine; Debian's packages slurm-wlm, slurm-client and munge have it"
PATIENCE = 20.0
# Partition `high` preempts `low`: a preempted job has some seconds of grace and is requeued.
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={path}/munge.sock
CredType=cred/munge
StateSaveLocation={path}/state
SlurmdSpoolDir={path}/spool-%n
SlurmctldPidFile={path}/slurmctld.pid
SlurmdPidFile={path}/slurmd-%n.pid
SlurmctldLogFile={path}/slurmctld.log
SlurmdLogFile={path}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=10
InactiveLimit=0
MinJobAge=600
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0,requeue_delay=1
SlurmdParameters=config_overrides
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=1 RealMemory=4000 State=UNKNOWN
PartitionName=low Nodes=n[1-{nodes}] Default=YES State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=high Nodes=n[1-{nodes}] State=UP PriorityTier=10 PreemptMode=OFF
"""


@dataclass(frozen=True)
class Slurm:
    """A controller and its nodes, of one CPU each, as daemons of this user; start it with `start_slurm`."""

    path: Path
    nodes: int
    waiting: dict[str, float] = field(default_factory=dict)  # since when requeued jobs wait

    @property
    def conf(self) -> Path:
        return self.path / "slurm.conf"

    def ask(self, *command: str) -> str:
        """Return what a command of SLURM prints."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    def hasten(self) -> None:
        """Let jobs that wait because they were requeued start soon: SLURM makes them wait for two minutes.

        Not at once: jobs that started while their first part was still ending were seen to vanish.
        """
        with suppress(subprocess.CalledProcessError):  # the controller restarts
            lines = self.ask("squeue", "-h", "--array", "-t", "PD", "-o", "%i %r").splitlines()
            waiting = {job for job, _, reason in (line.partition(" ") for line in lines) if reason == "BeginTime"}
            for job in self.waiting.keys() - waiting:
                del self.waiting[job]
            for job in waiting:
                if time.monotonic() - self.waiting.setdefault(job, time.monotonic()) > 12:
                    self.ask("scontrol", "update", f"jobid={job}", "StartTime=now")

    def start_controller(self) -> None:
        subprocess.run([str(DAEMONS["slurmctld"]), "-f", str(self.conf)], check=True)

    def stop_controller(self) -> None:
        _end(self.path / "slurmctld.pid")

    def wait(self) -> None:
        """Wait until all nodes answer and have nothing to do."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with suppress(subprocess.CalledProcessError):
                if self.ask("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split() == ["idle"] * self.nodes:
                    return
            time.sleep(0.1)
        logs = "\n".join(path.read_text()[-500:] for path in self.path.glob("*.log"))
        raise TimeoutError(f"SLURM is not ready:\n{logs}")

    def stop(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self.ask("scancel", f"--user={getpass.getuser()}")
            self.wait()
        for path in [*self.path.glob("slurmd-*.pid"), self.path / "slurmctld.pid", self.path / "munged.pid"]:
            _end(path)
        shutil.rmtree(self.path, ignore_errors=True)


def start_slurm(path: Path, nodes: int = 2) -> Slurm:
    """Start SLURM in an empty directory with a short path; about a second."""
    key = path / "key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    for folder in ("state", *(f"spool-n{number}" for number in range(1, nodes + 1))):
        (path / folder).mkdir()
    names = {"key-file": key, "socket": path / "munge.sock", "seed-file": path / "seed"}
    names |= {"pid-file": path / "munged.pid", "log-file": path / "munged.log"}
    munged = [
        str(DAEMONS["munged"]),
        "--force",
        "--num-threads=2",
        *(f"--{name}={value}" for name, value in names.items()),
    ]
    subprocess.run(munged, check=True, stderr=subprocess.DEVNULL)
    slurm, ports = Slurm(path, nodes), _free_ports(1 + nodes)
    slurm.conf.write_text(
        CONF.format(
            path=path,
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            nodes=nodes,
            controller_port=ports[0],
            ports=",".join(map(str, ports[1:])),
        )
    )
    slurm.start_controller()
    for number in range(1, nodes + 1):
        subprocess.run([str(DAEMONS["slurmd"]), "-f", str(slurm.conf), "-N", f"n{number}"], check=True)
    slurm.wait()
    return slurm


def rows(path: Path) -> list[dict[str, str]]:
    """Return results.csv of a study but for its seconds."""
    with (path / "results.csv").open(newline="") as file:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]


@dataclass
class Trainers:
    """The processes that were seen at work on each run, and the most of them at once."""

    seen: dict[str, set[int]] = field(default_factory=dict)
    at_once: dict[str, int] = field(default_factory=dict)

    def note(self, now: dict[str, set[int]], before: dict[str, set[int]]) -> None:
        """Add what two looks in a row saw. A process that only tries a lock is not there at both."""
        for run, processes in now.items():
            if working := processes & before.get(run, set()):
                self.seen.setdefault(run, set()).update(working)
                self.at_once[run] = max(self.at_once.get(run, 0), len(working))


@contextmanager
def watching_trainers(path: Path, every: float = 0.05) -> Iterator[Trainers]:
    """Watch which processes hold the runs of a study open, as `train` does with the lock file of its run."""
    trainers, over = Trainers(), threading.Event()

    def watch() -> None:
        before: dict[str, set[int]] = {}
        while not over.wait(every):
            now = _holders(path / "runs")
            trainers.note(now, before)
            before = now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield trainers
    finally:
        over.set()
        thread.join()


def _holders(runs: Path) -> dict[str, set[int]]:
    """Return the processes that have a run's lock file open, by the name of the run."""
    holders: dict[str, set[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            for each in (process / "fd").iterdir():
                with suppress(OSError):
                    file = Path(os.readlink(each))
                    if file.name == ".lock" and file.parent.parent == runs:
                        holders.setdefault(file.parent.name, set()).add(int(process.name))
    return holders


def parent_of(pid: int) -> int:
    """Return the number of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _end(pid_file: Path) -> None:
    """End a daemon of this test by its number, and wait until it has ended."""
    with suppress(FileNotFoundError, ValueError, ProcessLookupError):
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        for _ in range(100):
            os.kill(pid, 0)
            time.sleep(0.1)
