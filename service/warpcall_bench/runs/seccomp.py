"""The system calls that a process in the sandbox may not make, as a seccomp filter.

All others are allowed: CUDA's driver and torch make calls that no list of ours would hold. Calls
for another architecture than this machine's own end the thread that makes them.
"""

from __future__ import annotations

import errno
import fcntl
import tempfile
from functools import cache

CLONE_NEWUSER = 0x10000000
# Flags of clone that make a namespace. A new one gives its creator capabilities, which open parts of
# the kernel that are otherwise closed to users.
CLONE_NAMESPACES = (
    0x00020000,  # CLONE_NEWNS
    0x02000000,  # CLONE_NEWCGROUP
    0x04000000,  # CLONE_NEWUTS
    0x08000000,  # CLONE_NEWIPC
    CLONE_NEWUSER,
    0x20000000,  # CLONE_NEWPID
    0x40000000,  # CLONE_NEWNET
)
TERMINAL_IOCTLS = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX put input into a terminal
# Commands of fcntl: the signal of a file may be SIGCONT, as above; a lease lets each open of the file
# wait; the last one watches a folder.
FCNTLS = (fcntl.F_SETSIG, fcntl.F_SETLEASE, fcntl.F_NOTIFY)
MAP_HUGETLB = 0x40000  # of mmap: pages that the operator has reserved, for all together
PERSONALITY_QUERY = 0xFFFFFFFF
# AF_UNIX and AF_NETLINK belong to the sandbox's own network, which has no other interface than `lo`.
# AF_VSOCK would reach a virtual machine's host, AF_ALG the kernel's ciphers. AF_INET and AF_INET6
# reach nobody, and their buffers are of one pool for all of the machine.
FAMILIES = (1, 16)
NETWORK_FAMILIES = (2, 10)

# They read or change other processes, or the kernel.
REFUSED = (  # noqa: SIM905  # a list would take a line for each name
    "ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp "
    "bpf perf_event_open lookup_dcookie syslog add_key request_key keyctl "
    "mount umount2 pivot_root chroot mount_setattr move_mount open_tree fsopen fsconfig fsmount "
    "fspick unshare setns name_to_handle_at open_by_handle_at fanotify_init quotactl quotactl_fd "
    "kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct "
    "settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname vhangup "
    "iopl ioperm modify_ldt uselib ustat"
).split()
# Programs find out whether the kernel has these, and go on without them. The memory of a memfd and
# of a System V segment belongs to no process: the job's limit of memory would not see it.
# All of the machine's processes share one limit on the requests of asynchronous input and output.
# POSIX timers and message queues can send SIGCONT to a process that the job's process has stopped
# while others are timed; Python's and torch's timers are of other kinds.
MISSING = (  # noqa: SIM905  # a list would take a line for each name
    "clone3 userfaultfd io_uring_setup io_uring_enter io_uring_register memfd_create memfd_secret "
    "shmget shmat timer_create mq_open mq_notify io_setup"
).split()

# All that can be written in the sandbox is in memory. These would let the machine's disks write what
# others have written, for which everyone waits.
NOT_DONE = "sync syncfs fsync fdatasync sync_file_range msync".split()  # noqa: SIM905
# They can carry descriptors to the process at the other end of a socket, which closes them when it
# receives the message: a socket that lingers, or a large file, lets it wait.
SENDING = ("sendmsg", "sendmmsg")


class FilterError(Exception):
    """The filter cannot be made on this machine. The message says why."""


@cache
def program(*, profiler: bool = False) -> bytes:
    """The filter in the form that bubblewrap and the kernel read.

    Args:
        profiler: whether Nsight Compute runs in the sandbox, whose programs talk by TCP.

    Raises:
        FilterError: libseccomp is missing, or does not know one of the calls.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as error:
        raise FilterError(f"libseccomp cannot be loaded ({error}); install libseccomp2") from None
    made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refuse, missing = pyseccomp.ERRNO(errno.EPERM), pyseccomp.ERRNO(errno.ENOSYS)

    def deny(action: int, name: str, *conditions: tuple[int, int, int, int]) -> None:
        number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
        if number == -1:
            raise FilterError(f"libseccomp does not know {name}; install libseccomp 2.5.4 or newer")
        made.add_rule(action, number, *(pyseccomp.Arg(*condition) for condition in conditions))

    for name in REFUSED:
        deny(refuse, name)
    for name in MISSING:
        deny(missing, name)
    for flag in CLONE_NAMESPACES:
        deny(refuse, "clone", (0, pyseccomp.MASKED_EQ, flag, flag))
    for number in TERMINAL_IOCTLS:
        deny(refuse, "ioctl", (1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, number))
    for number in FCNTLS:
        deny(refuse, "fcntl", (1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, number))
    deny(refuse, "mmap", (3, pyseccomp.MASKED_EQ, MAP_HUGETLB, MAP_HUGETLB))
    deny(refuse, "personality", (0, pyseccomp.NE, PERSONALITY_QUERY, 0))
    for name in NOT_DONE:
        deny(pyseccomp.ERRNO(0), name)
    for name in () if profiler else SENDING:
        deny(refuse, name)
    families = (*FAMILIES, *(NETWORK_FAMILIES if profiler else ()))
    for family in set(range(max(FAMILIES))) - set(families):
        deny(refuse, "socket", (0, pyseccomp.EQ, family, 0))
    deny(refuse, "socket", (0, pyseccomp.GT, max(FAMILIES), 0))
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()
