"""The seccomp filter (a BPF program) of all processes in a container.

It denies namespaces, mounts, access to other processes, keys, administration of the kernel, and memory that the agent
cannot count. The container's namespaces already make most of these calls useless; the filter also keeps kernel bugs
behind them out of reach. Socket buffers keep their default size, because the agent counts sockets and not the bytes in
them.
"""

import errno
import platform
import struct

_LOAD, _EQUAL, _ANY_BIT, _AND_OVER, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEW*: user, pid, net, ipc, uts, cgroup, mount, time
_FORBIDDEN_FAMILIES = (16, 17, 21, 38, 40, 44)  # netlink, packet, rds, alg, vsock, xdp
_X32 = 0x40000000
_SOCKET_LEVEL = 1  # SOL_SOCKET
_BUFFER_SIZES = (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE

# name: (x86_64, aarch64); -1 if an architecture lacks the call.
_REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "unshare": (272, 97),
    "setns": (308, 268),
    # Memory that is not attributed to a process, so the agent cannot count it, and that outlives its creator.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    # Keeps a whole huge page after its memory is unmapped, for the price of one page of a pipe.
    "vmsplice": (278, 75),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "fanotify_init": (300, 262),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "modify_ldt": (154, -1),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "mbind": (237, 235),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mknod": (133, -1),
    "mknodat": (259, 33),
}
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_CLONE, _CLONE3, _SOCKET, _SETSOCKOPT = (56, 220), (435, 435), (41, 198), (54, 208)


def program(machine: str | None = None) -> bytes | None:
    """Return the filter for a machine (default: this one), or None for an unknown architecture."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    architecture, column = known
    lines = [
        _line(_LOAD, _ARCHITECTURE),
        _line(_EQUAL, architecture, then=1),
        _line(_RETURN, _KILL),
        _line(_LOAD, _NUMBER),
        # x32 numbers the same calls differently and would bypass the comparisons below.
        _line(_AND_OVER, _X32, otherwise=1),
        _line(_RETURN, _error(errno.ENOSYS)),
    ]
    for numbers in _REFUSED.values():
        if numbers[column] >= 0:
            lines += _refuse(numbers[column], errno.EPERM)
    # The flags of clone3 are behind a pointer that a filter cannot follow. With ENOSYS, libraries fall back to clone.
    lines += _refuse(_CLONE3[column], errno.ENOSYS)
    lines += [
        _line(_EQUAL, _CLONE[column], otherwise=4),
        _line(_LOAD, _FIRST_ARGUMENT),
        _line(_ANY_BIT, _NEW_NAMESPACES, otherwise=1),
        _line(_RETURN, _error(errno.EPERM)),
        _line(_RETURN, _ALLOW),
    ]
    # Answered with success: programs treat the size as a hint, and some do not expect an error.
    sizes = [line for option in _BUFFER_SIZES for line in _refuse(option, 0)]
    lines += [
        _line(_EQUAL, _SETSOCKOPT[column], otherwise=4 + len(sizes)),
        _line(_LOAD, _SECOND_ARGUMENT),
        _line(_EQUAL, _SOCKET_LEVEL, otherwise=1 + len(sizes)),
        _line(_LOAD, _THIRD_ARGUMENT),
        *sizes,
        _line(_RETURN, _ALLOW),
    ]
    families = [line for family in _FORBIDDEN_FAMILIES for line in _refuse(family, errno.EAFNOSUPPORT)]
    lines += [_line(_EQUAL, _SOCKET[column], otherwise=1 + len(families)), _line(_LOAD, _FIRST_ARGUMENT), *families]
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def _refuse(value: int, number: int) -> list[bytes]:
    return [_line(_EQUAL, value, otherwise=1), _line(_RETURN, _error(number))]


def _error(number: int) -> int:
    return _ERRNO | number


def _line(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """Encode one instruction. `then` and `otherwise` are the numbers of instructions to skip."""
    return struct.pack("=HBBI", code, then, otherwise, value)
