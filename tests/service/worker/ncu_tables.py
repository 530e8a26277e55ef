"""Tables as `ncu --import FILE --csv --page raw --print-units base` prints them."""

from __future__ import annotations

import csv
import io

HEAD = {
    "ID": ("", "0"),
    "Process ID": ("", "4242"),
    "Process Name": ("", "python3.12"),
    "Host Name": ("", "127.0.0.1"),
    "Kernel Name": ("", "_softmax"),
    "Context": ("", "1"),
    "Stream": ("", "7"),
    "Block Size": ("", "(256, 1, 1)"),
    "Grid Size": ("", "(8192, 1, 1)"),
    "Device": ("", "0"),
    "CC": ("", "9.0"),
}
METRICS = {
    "gpu__time_duration.sum": ("ns", "43,616"),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "83.25"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "83.25"),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "40.5"),
    "l1tex__throughput.avg.pct_of_peak_sustained_active": ("%", "31"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "35.125"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "91.5"),
    "sm__maximum_warps_per_active_cycle_pct": ("%", "100"),
    "launch__registers_per_thread": ("register/thread", "32"),
    "launch__shared_mem_per_block": ("byte/block", "1,088"),
    "launch__waves_per_multiprocessor": ("", "7.76"),
    "launch__occupancy_limit_registers": ("block", "8"),
    "launch__occupancy_limit_warps": ("block", "8"),
    "launch__occupancy_limit_shared_mem": ("block", "32"),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("inst", "12"),
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": ("inst", "4"),
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": ("inst", "3"),
    "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": ("inst", "1"),
    "smsp__average_warps_issue_stalled_barrier_not_issued_per_issue_active.ratio": ("inst", "9"),
    "derived__local_spilling_requests": ("request", "0"),
}


def table(*kernels: dict[str, str], **values: str) -> str:
    """A table of kernels, by default one.

    Args:
        kernels: for each kernel the values of columns that are different.
        values: values of columns of all kernels, by names with "_" for "." and " ".
    """
    columns = {**HEAD, **METRICS}
    flat = {name.replace(".", "_").replace(" ", "_"): name for name in columns}
    changed = {flat[name]: value for name, value in values.items()}
    rows = [[unit for unit, _ in columns.values()]]
    for one in kernels or ({},):
        rows.append([{**changed, **one}.get(name, value) for name, (_, value) in columns.items()])
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([[*columns], *rows])
    return text.getvalue()
