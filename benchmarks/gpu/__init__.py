"""A report for machines with a GPU: first checks, CUDA graphs, training, tests, generation, utilization, devices.

Every part runs in a separate process, limited to ten minutes. It writes PART.json, PART.log and, for all parts in the
folder, report.md. A row that fails is reported, and the next one starts, after a crash in a new process; the exit
status is then 1.
"""

from .command import add_arguments, run

__all__ = ["add_arguments", "run"]
