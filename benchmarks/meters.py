"""CPU time and memory of processes, read from Linux' /proc."""

import os
from collections import defaultdict
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")

# Positions behind the program's name in /proc/PID/stat; see proc(5).
PARENT, USER, REAPED_SYSTEM = 1, 11, 14


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and its descendants, including ended ones."""
    ticks = 0
    for member in _family(pid):
        fields = _stat(member)
        ticks += sum(int(field) for field in fields[USER : REAPED_SYSTEM + 1])
    return ticks / TICKS_PER_SECOND


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process and its descendants in MiB. Shared pages count for each process."""
    pages = 0
    for member in _family(pid):
        try:
            pages += int((PROC / str(member) / "statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def busy_seconds() -> float:
    """Return the CPU time of the whole machine, including time stolen by the hypervisor."""
    user, nice, system, _idle, _waiting, *interrupts_and_steal = _machine()
    return (user + nice + system + sum(interrupts_and_steal[:3])) / TICKS_PER_SECOND


def _machine() -> list[int]:
    with (PROC / "stat").open() as stat:
        return [int(field) for field in stat.readline().split()[1:]]


def _family(pid: int) -> list[int]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children[int(fields[PARENT])].append(int(entry.name))
    family = [pid]
    for member in family:
        family.extend(children[member])
    return family


def _stat(pid: int) -> list[str]:
    """Return the fields after the process name, or an empty list if the process has ended."""
    # The name may contain spaces and parentheses.
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
