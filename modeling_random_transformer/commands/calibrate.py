"""Calibrate the confidence of a saved model on parallel text that it was not trained on.

    random-transformer calibrate --model outputs/quickstart --source_file validation.en --target_file validation.es
    random-transformer translate --model outputs/quickstart --confidence "the boy sees the girl"

The command translates the text, and writes confidence.json to the folder of the model. For a model of several
languages, it writes a file for the direction, such as confidence.en.de.json. `train` calibrates on its validation sets.
Do not calibrate on a test set whose confidence you report.
"""

from dataclasses import dataclass
from pathlib import Path

from ..base.streams import check_output
from ..data.validation import read_valid
from ..inference.confidence import calibration_file
from ..inputs_random_transformer import name_lines_in_errors, renumber_errors
from .corpus_arguments import CorpusArguments


@dataclass(frozen=True, kw_only=True)
class Arguments(CorpusArguments):
    """Arguments of `calibrate`.

    Args:
        overwrite: replace the calibration of the model

    Raises:
        ValueError: there are several models.
    """

    overwrite: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_one_model()

    def check_file(self, path: Path) -> None:
        """Raise a `ValueError` if the calibration cannot be written, or exists and `overwrite` is not set."""
        check_output("the calibration of --model", path)
        if path.exists() and not self.overwrite:
            raise ValueError(f"--model must be without {path.name} unless --overwrite is given, got {self.model[0]}.")


def run(arguments: Arguments) -> None:
    """Load the model, translate, fit, and write the file."""
    corpus = arguments.corpus()
    lines = read_valid(corpus)
    pairs = [(line.source, line.target) for line in lines]
    with arguments.load(is_resumable=False) as (model, tokenizer):
        from ..inference.calibration import calibrate  # needs sacrebleu

        name = calibration_file(tokenizer, arguments.source_lang, arguments.target_lang)
        path = arguments.model[0] / name
        arguments.check_file(path)
        with name_lines_in_errors(str(corpus)), renumber_errors([line.number - 1 for line in lines]):
            calibration = calibrate(model, tokenizer, pairs, **arguments.text_options)
        calibration.save(path.parent, name)
    print(f"{path}: {calibration.pairs} pairs, median chrF++ {calibration.threshold:.2f}")
