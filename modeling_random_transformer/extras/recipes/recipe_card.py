"""The model card of a recipe, which is derived from the card of the stage whose model is the result."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from ...base.files import write_atomically
from ...training.model_card import command_of, with_portable_paths
from ...training.run_record import is_uncompared


def set_origin(path: Path, stage: str, recipe: str, flags: Sequence[Sequence[str]]) -> None:
    """Change the card of a stage to the card of the result, with its name and the command of the recipe.

    Args:
        path: the card in the folder of the result.
        stage: the name of the stage.
        recipe: the path of the recipe.
        flags: the flags of `train` that follow it, each with its values. Those that have no effect on the result are
            left out: they may be secret, as `--hub_token`.
    """
    shown = [[recipe]]
    for flag in flags:
        name = flag[0].removeprefix("--")
        if name == "output_dir" or not is_uncompared(name):
            shown.append([*flag])
    command = with_portable_paths(command_of(shown), chain.from_iterable(shown))
    content = path.read_text(encoding="utf-8")
    for place in ("\n# {}\n", "translate --model {}"):
        content = content.replace(place.format(stage), place.format(path.parent.name), 1)
    before, heading, after = content.partition("## Training\n\n```sh\n")
    _, end, rest = after.partition("\n```\n")
    write_atomically(path, [f"{before}{heading}{command}{end}{rest}".encode()])
