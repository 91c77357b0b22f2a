"""Convert a checkpoint of another implementation to a Random Transformer.

    random-transformer convert opus-2020-02-26.zip outputs/en-de
    random-transformer convert marian opus-mt-en-de --output outputs/en-de
    random-transformer convert marian-npz model.npz --output outputs/en-de
    random-transformer convert torch model.pt --output outputs/mine --num_heads 8 --embedding embedding.weight
    random-transformer convert fairseq checkpoint_best.pt --output outputs/de-en --source_dict dict.de.txt
    random-transformer convert joeynmt models/wmt14_ende --output outputs/en-de
    random-transformer convert eole models/wmt17 --output outputs/en-de
    random-transformer convert opennmt model_step_100000.pt --output outputs/en-de

The first argument is a format or an archive (.zip, .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz) with a model of Marian
or fairseq. `random-transformer convert FORMAT --help` lists the arguments of a format. The command prints how each
weight was converted. Exit status: 0 on success; 2 if the checkpoint cannot be converted. No code in a file is executed.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

import transformers

from ..base.flags import Parser, help_texts, plain
from ..extras import conversion
from ..extras.conversion.pytorch import TOKEN_IDS
from ..inputs_random_transformer import drop_none

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
FORMATS: dict[str, Callable[..., Any]] = {
    "marian": conversion.convert_marian,
    "marian-npz": conversion.convert_marian_npz,
    "torch": conversion.convert_torch_transformer,
    "fairseq": conversion.convert_fairseq,
    "joeynmt": conversion.convert_joeynmt,
    "eole": conversion.convert_eole,
    "opennmt": conversion.convert_opennmt,
}


# Those of `from_torch_transformer`, which `convert_torch_transformer` has as `**options`.
OPTIONS: dict[str, Any] = {"num_heads": int, "scale_embedding": bool, "norm_first": bool, "activation": str}
OPTIONS |= {"layer_norm_eps": float, **dict.fromkeys(TOKEN_IDS, int)}


def run(program: str, argv: Sequence[str]) -> None:
    """Convert a checkpoint whose format is the first argument, or an archive, and print the report."""
    is_archive = bool(argv) and argv[0].lower().endswith(ARCHIVE_SUFFIXES)
    convert: Callable[..., Any] = conversion.convert_archive
    if argv and argv[0] in FORMATS:
        convert, program, argv = FORMATS[argv[0]], f"{program} {argv[0]}", argv[1:]
    elif not is_archive:  # help, or an error
        parser = Parser(program, __doc__)
        parser.add_argument("format", choices=FORMATS, help="the format of the checkpoint")
        parser.parse_args(argv[:1])
    parser = Parser(program, inspect.cleandoc(convert.__doc__ or "").partition("\n\nArgs:")[0])
    add_parameters(parser, convert, positional=2 if is_archive else 1)
    arguments = vars(parser.parse_intermixed_args(argv))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(convert(**drop_none(**arguments)))


def add_parameters(parser: Parser, convert: Callable[..., Any], positional: int) -> None:
    """Add the parameters of a conversion, of which the first ones are positional, with its docstring as help.

    The function itself checks their values.
    """
    helps, parameters = help_texts(conversion.from_torch_transformer, convert), inspect.signature(convert).parameters
    kinds = {name: parameter.annotation for name, parameter in parameters.items() if name != "options"}
    if "options" in parameters:
        kinds |= OPTIONS
    required = [name for name in kinds.keys() & parameters if parameters[name].default is inspect.Parameter.empty]
    for number, (name, kind) in enumerate(kinds.items()):
        settings: dict[str, Any] = {"help": plain(helps.get(name, "a token id of the model"))}
        if number >= positional:
            name, settings["required"] = f"--{name}", name in required
        if kind is bool:
            settings["action"] = "store_true"
        else:
            numbers = [each for each in (int, float) if each in (kind, *get_args(kind))]
            settings |= {"type": (*numbers, str)[0], "nargs": "+" if get_origin(kind) is Sequence else None}
        parser.add_argument(name, **settings)
