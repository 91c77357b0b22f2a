"""The names of the files of a saved model and its tokenizer, and of the records of runs."""

from pathlib import Path

from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME

TOKENIZER_FILE, TOKENIZER_CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
SAVED_WEIGHTS = "*.safetensors"  # a pattern: large models have several files
# One of these is loaded, the first that exists.
LOADED_WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
EXPORTED_WEIGHTS = ("model.bin", "encoder.onnx")  # the files of CTranslate2 and ONNX
TRAINING_RECORD, RECIPE_RECORD = "training_manifest.json", "recipe.json"  # in the folder of a run from its beginning
JOB_RECORD, JOB_LOCK = "job.json", "job.lock"  # in the working folder of a resumable job


def check_not_exported(folder: Path) -> None:
    """Check that a folder is not that of a model for an engine, which only the engine can load.

    Raises:
        ValueError: it is such a folder.
    """
    if any(folder.glob(SAVED_WEIGHTS)):
        return
    for name in EXPORTED_WEIGHTS:
        if (folder / name).is_file():
            raise ValueError(
                f"the folder must be that of the model, not of its export, got one with {name}. docs/how_to/export.md "
                "describes how to translate with an export."
            )
