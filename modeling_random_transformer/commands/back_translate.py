"""Translate monolingual text of the target language with a reverse model, to create a synthetic parallel corpus.

    random-transformer back-translate --model outputs/de-en --input mono.de \\
        --output_source synthetic.en --output_target synthetic.de --method noised_beam

The model translates from the target to the source language. Line n of --output_source is the synthetic source of line n
of --output_target. Each synthetic source begins with the tag. Train with --special_tokens "<bt>" to make the tag one
token, and with --special_tokens "<bt>" "<blank>" for noised sources. Files may be compressed. The same command resumes
after an interruption, and `accelerate launch` distributes the work over processes.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from ..base.distributed import call_on_main_process
from ..base.flags import split_values
from ..extras.parser import InputFile
from ..inputs_random_transformer import drop_none
from ..stages.back_translation import BackTranslationOptions, back_translate
from .command_line import InferenceArguments, ResumableArguments, check_new_outputs


@dataclass(frozen=True, kw_only=True)
class Arguments(BackTranslationOptions, ResumableArguments, InferenceArguments):
    """Arguments of `back-translate`.

    Args:
        input: text of the target language, one per line; or a file with columns; or -
        output_source: file to write the synthetic sources to
        output_target: file to write the targets to
        num_beams: beam size (default: 4)
        temperature: temperature of --method sampling (default: 1)
        overwrite: replace outputs that exist

    Raises:
        ValueError: an output exists.
    """

    input: InputFile
    output_source: Path
    output_target: Path
    num_beams: int | None = None
    temperature: float | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_new_outputs(self.overwrite, output_source=self.output_source, output_target=self.output_target)


def run(arguments: Arguments) -> None:
    """Load the model, translate, and print the counts."""
    options, _ = split_values(BackTranslationOptions, vars(arguments))
    search = drop_none(num_beams=arguments.num_beams, temperature=arguments.temperature)
    with arguments.load(is_resumable=True) as (model, tokenizer):
        report = back_translate(
            arguments.input,
            arguments.output_source,
            arguments.output_target,
            model,
            tokenizer,
            chunk_size=arguments.chunk_size,
            restart=arguments.restart,
            **options,
            **search,
            **arguments.text_options,
        )
        call_on_main_process(lambda: print(report, file=sys.stderr))
