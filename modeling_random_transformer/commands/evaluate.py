"""Print BLEU and chrF++ of translations, and the signatures that make them comparable.

    random-transformer evaluate --input translated --target_file test.es
    random-transformer evaluate --input translated --target_file first.zh second.zh --target_lang zh
    random-transformer evaluate --input translated --target_file test.es --target_lang es --variant moses-lowercased

--variant selects the BLEU that a paper reports: on plain texts, on their Moses tokens, or on texts that are already
tokenized.
"""

from dataclasses import dataclass, field

from ..extras.evaluation import VARIANTS, evaluate_file
from ..extras.parser import InputFile
from .command_line import STANDARD_PATH, check_one_stream


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `evaluate`.

    Args:
        input: translations, one per line; - is standard input (the default)
        target_file: one or more files of references, line by line
        variant: variant of BLEU
        target_lang: target language, which selects the tokenizer of BLEU
        tokenize: sacrebleu's tokenizer (default: that of --target_lang, or 13a)
    """

    input: InputFile = STANDARD_PATH
    target_file: list[InputFile]
    variant: str = field(default="cased", metadata={"choices": tuple(VARIANTS)})
    target_lang: str | None = None
    tokenize: str | None = None

    def __post_init__(self) -> None:
        references = {f"target_file {number}": path for number, path in enumerate(self.target_file, start=1)}
        check_one_stream(input=self.input, **references)
        if self.tokenize is not None and self.target_lang is not None:
            raise ValueError(f"--tokenize must be unset with --target_lang, which selects it, got {self.tokenize!r}.")


def run(arguments: Arguments) -> None:
    """Print one line per metric: name, score and signature."""
    scores = evaluate_file(
        arguments.input, arguments.target_file, arguments.variant, arguments.target_lang, arguments.tokenize
    )
    for metric, result in scores.items():
        print(f"{metric} {result['score']:.2f} {result['signature']}")
