"""The command `random-transformer VERB …`: imports the module of the verb, calls its `run`, and returns a status.

A module has a dataclass `Arguments`, and `run` has an object of this class as its argument. In a module without the
class, `run` parses the flags itself, and its arguments are the name of the program and the flags.
"""

import importlib
import io
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from accelerate.utils.memory import should_reduce_batch_size

from . import _exit_when_interrupted
from .base.errors import first_line
from .commands.command_line import PROGRAM, discard_stdout, print_error, raise_on_sigterm
from .extras.parser import Parser

# What each verb does; `back-translate` is the module `commands/back_translate.py`.
VERBS = {
    "clean": "drop duplicates, copies and other unsuitable pairs from parallel text",
    "train": "train a translation model from scratch, or fine-tune one",
    "translate": "translate sentences, a file or standard input",
    "score": "compute the log-probability of given translations",
    "align": "link the words of given translations to those of their sources",
    "evaluate": "print BLEU and chrF++ of translations, also in the variant of a paper",
    "calibrate": "fit the confidence of a model's translations on parallel text",
    "back-translate": "make a synthetic corpus from monolingual text and a reverse model",
    "distill": "train a small model on the translations of a teacher",
    "convert": "convert a checkpoint of Marian, fairseq, OpenNMT-py, Eole, JoeyNMT or torch.nn.Transformer",
    "export": "export a model to CTranslate2, ONNX, Argos Translate or a class of transformers",
    "serve": "serve models over HTTP, with the API of LibreTranslate",
    "explore": "write a page of attention, predictions and the beam search",
    "report": "write a page of scores and of the worst translations of a test set",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments; `None` for `sys.argv[1:]`, which also installs a SIGTERM handler.

    Returns:
        The exit status, see `run_command`; 2 for an unknown verb.
    """
    if argv is None:
        raise_on_sigterm()
        if signal.getsignal(signal.SIGINT) is _exit_when_interrupted:  # the handler that was installed for the imports
            signal.signal(signal.SIGINT, signal.default_int_handler)
        argv = sys.argv[1:]
    verb, *arguments = [*argv] or ["--help"]
    if verb in ("-h", "--help"):
        print(usage())
        return 0
    if verb == "--version":
        from . import __version__

        print(f"{PROGRAM} {__version__}")
        return 0
    if verb not in VERBS:
        print_error(PROGRAM, f"the verb must be one of {', '.join(VERBS)}, got {verb!r}.")
        return 2
    program = f"{PROGRAM} {verb}"
    return run_command(partial(run_verb, verb, program, arguments), program)


def run_verb(verb: str, program: str, argv: Sequence[str]) -> int | None:
    """Parse the flags of a verb and run it; returns a status, if it has one of its own."""
    module = load_verb(verb)
    if hasattr(module, "Arguments"):
        return module.run(Parser(program, module.__doc__, [module.Arguments]).parse(argv))
    return module.run(program, argv)


def load_verb(verb: str) -> Any:
    """The module of a verb, whose import takes seconds; raises a `ValueError` if a package is missing."""
    try:
        return importlib.import_module(f".commands.{verb.replace('-', '_')}", __package__)
    except ImportError as error:
        if (error.name or "").startswith(f"{__package__}."):  # an error in the code of this package
            raise
        extra = "serve" if verb == "serve" else "train"
        raise ValueError(f"a package is missing: pip install 'random-transformer[{extra}]': {error}.") from error


def run_command(command: Callable[[], int | None], program: str) -> int:
    """Run a command and turn its errors into an exit status, and a line on stderr.

    Args:
        command: the command; it may return a status of its own.
        program: the name in errors.

    Returns:
        0 on success, or if the reader of standard output has exited; 1 if the result is not valid, such as weights or
        a loss that are not finite; 2 if an argument, a file or a text is invalid, the memory is too small, or a package
        is missing; 130 after Ctrl-C.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict" and not sys.stdout.closed:
        # A translation or the name of a file must not end a training because the terminal has another encoding.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return command() or 0
    except BrokenPipeError:  # the reader, such as `head`, has exited
        discard_stdout()
        return 0
    except KeyboardInterrupt as interruption:
        if str(interruption):
            print_error(program, str(interruption))
        return 128 + signal.SIGINT
    except (FloatingPointError, ValueError, OSError) as error:
        print_error(program, format_error(error))
        return 1 if isinstance(error, FloatingPointError) else 2
    except ImportError as error:  # an option of transformers such as --deepspeed needs another package
        print_error(program, f"a package is missing: {first_line(error)}")
        return 2
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or should_reduce_batch_size(error)):
            raise
        print_error(
            program,
            "the sizes, such as --max_tokens_per_batch and --num_beams, must be small enough for the memory, "
            f"got {type(error).__name__}: {format_error(error)}",
        )
        return 2


def format_error(error: Exception) -> str:
    """The error's message in one line, with the path for an error of the operating system.

    An error of copying a file has two paths, of which the second one is the copy, such as on a full disk.
    """
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename2 or error.filename}: {error.strerror}."
    return " ".join(str(error).split("\n"))


def usage() -> str:
    """The help text, with one line per verb."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:{width}}  {description}" for verb, description in VERBS.items())
    return f"usage: {PROGRAM} VERB [arguments]\n\n{verbs}\n\n`{PROGRAM} VERB --help` lists the arguments of a verb."
