"""Commands in the process of a test."""

from collections.abc import Callable, Iterable


def exit_status(main: Callable[[list[str]], int], arguments: Iterable[object]) -> int:
    """The exit status of a command, which argparse raises for invalid arguments."""
    try:
        return main([*map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)
