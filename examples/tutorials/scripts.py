"""What the scripts share: arguments, and errors in one line."""

import argparse
import sys
from collections.abc import Callable


def script_parser(script: str, description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the description, with its examples, and the arguments; an error is one line."""
    return argparse.ArgumentParser(
        script,
        usage=argparse.SUPPRESS,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def exit_status(run: Callable[[], int | None], script: str) -> int:
    """Run a script, and print its error, if any.

    Returns:
        What it returns, or 0; 2 if an argument or a file is invalid; 130 after Ctrl-C.
    """
    try:
        return run() or 0
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"{script}: error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
