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
from typing import Any, get_origin

import transformers

from ..extras import conversion
from ..extras.conversion.pytorch import TOKEN_IDS
from ..extras.parser import Parser, help_texts, plain

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
# The arguments of `from_torch_transformer` that `convert_torch_transformer` has as `**options`.
TORCH_OPTIONS: dict[str, type] = {
    "num_heads": int,
    "scale_embedding": bool,
    "norm_first": bool,
    "activation": str,
    "layer_norm_eps": float,
    **dict.fromkeys(TOKEN_IDS, int),
}


def run(program: str, argv: Sequence[str]) -> None:
    """Convert a checkpoint whose format is the first argument, or an archive, and print the report."""
    name = argv[0] if argv else ""
    if name.lower().endswith(ARCHIVE_SUFFIXES):
        convert: Callable[..., Any] = conversion.convert_archive
        arguments = make_parser(program, convert, positional=2).values(argv)
    else:
        formats = Parser(program, __doc__)
        formats.add_argument("format", choices=FORMATS, help="the format of the checkpoint")
        convert = FORMATS[formats.parse_args(argv[:1]).format]
        arguments = make_parser(f"{program} {name}", convert, positional=1).values(argv[1:])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(convert(**arguments))


def make_parser(program: str, convert: Callable[..., Any], positional: int) -> Parser:
    """A parser of the parameters of a conversion, of which the first ones are positional, with its docstring as help.

    The function itself checks their values.
    """
    parser = Parser(program, inspect.cleandoc(convert.__doc__ or "").partition("\n\nArgs:")[0])
    helps = help_texts(conversion.from_torch_transformer, convert)
    parameters = inspect.signature(convert).parameters
    types = {name: parameter.annotation for name, parameter in parameters.items()}
    if types.pop("options", None):
        types |= TORCH_OPTIONS
    for number, (name, kind) in enumerate(types.items()):
        flag = name
        settings: dict[str, Any] = {"help": plain(helps.get(name, "a token id of the model"))}
        if number >= positional:
            flag = f"--{name}"
            settings["required"] = name in parameters and parameters[name].default is inspect.Parameter.empty
        if kind is bool:
            settings["action"] = "store_true"
        elif kind in (int, float):
            settings["type"] = kind
        elif get_origin(kind) is Sequence:
            settings["nargs"] = "+"
        parser.add_argument(flag, **settings)
    return parser
