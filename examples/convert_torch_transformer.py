"""Convert a checkpoint with an `nn.Transformer`: the same as `random-transformer convert torch`.

    python examples/convert_torch_transformer.py model.pt --output outputs/mine --num_heads 8 --prefix transformer. \\
        --embedding src_tok_emb.embedding.weight tgt_tok_emb.embedding.weight --output_layer generator \\
        --positions positional_encoding.pos_embedding --scale_embedding \\
        --pad_token_id 1 --bos_token_id 2 --eos_token_id 3 --decoder_start_token_id 2

These are the names of PyTorch's translation tutorial.
"""

from collections.abc import Sequence

from modeling_random_transformer.conversion import command
from modeling_random_transformer.utils.command_line import run_script


def main(argv: Sequence[str] | None = None) -> int:
    return command.run_torch(argv, "convert_torch_transformer.py")


if __name__ == "__main__":
    run_script(main)
