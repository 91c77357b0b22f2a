"""The command `random-transformer VERB …`: imports the module of the verb and calls its `run`."""

import importlib
import signal
import sys
from collections.abc import Sequence

from . import _exit_when_interrupted
from .commands.command_line import INTERRUPTED, print_error, raise_on_sigterm, run_command

PROGRAM = "random-transformer"
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

    def run() -> int | None:
        try:
            module = importlib.import_module(f".commands.{verb.replace('-', '_')}", __package__)  # takes seconds
        except ImportError as error:
            if (error.name or "").startswith(f"{__package__}."):  # an error in the code of this package
                raise
            extra = "serve" if verb == "serve" else "train"
            raise ValueError(f"a package is missing: pip install 'random-transformer[{extra}]': {error}.") from error
        return module.run(program, arguments)

    return run_command(run, program, INTERRUPTED if verb in ("train", "distill") else "")


def usage() -> str:
    """The help text, with one line per verb."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:{width}}  {description}" for verb, description in VERBS.items())
    return f"usage: {PROGRAM} VERB [arguments]\n\n{verbs}\n\n`{PROGRAM} VERB --help` lists the arguments of a verb."
