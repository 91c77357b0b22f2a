"""What several parts of the package share; it depends on the files of the model only."""

DTYPES = ("float32", "bfloat16", "int8")  # of weights in inference
# Engines that compute `generate()`: the module of each in `extras`, which has a function `attach`.
ENGINES = {"ctranslate2": "export.dispatch"}
