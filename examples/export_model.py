"""Export a model to CTranslate2 or onnxruntime: the same as `random-transformer export`.

python examples/export_model.py outputs/quickstart --engine ctranslate2 --dtype int8 --output outputs/served
python examples/export_model.py outputs/quickstart --engine onnx --output outputs/served --check test.en
python examples/export_model.py outputs/quickstart --engine onnx --web --output outputs/page
"""

from collections.abc import Sequence

from modeling_random_transformer.export import command
from modeling_random_transformer.utils.command_line import run_script


def main(argv: Sequence[str] | None = None) -> int:
    return command.main(argv, "export_model.py")


if __name__ == "__main__":
    run_script(main)
