"""The names of the files of a saved model and its tokenizer, and of the records of runs."""

from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME

CONFIG, GENERATION, ADAPTER = "config.json", "generation_config.json", "adapter_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SAVED_WEIGHTS = "*.safetensors"  # a pattern: large models have several files
# One of these is loaded, the first that exists.
LOADED_WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
TRAINING_RECORD, RECIPE_RECORD = "training_manifest.json", "recipe.json"  # in the folder of a run from its beginning
JOB_RECORD, JOB_LOCK = "job.json", "job.lock"  # in the working folder of a resumable job
