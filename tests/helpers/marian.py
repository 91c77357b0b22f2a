"""MarianMT models with random weights, and folders like those of OPUS-MT with trained tokenizers."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from transformers import MarianConfig, MarianMTModel

from tests.helpers.translation import SENTENCES

PIECES = 30  # per language, including sentencepiece's <unk>, <s> and </s>
ENGLISH, SPANISH = SENTENCES[:3], SENTENCES[3:]


OPTIONS = {
    "vocab_size": 61,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "activation_function": "swish",
    "scale_embedding": True,
    "max_position_embeddings": 64,
    "init_std": 0.3,  # large, so that outputs depend on the inputs
    "pad_token_id": 60,
    "eos_token_id": 0,
    "decoder_start_token_id": 60,
    "forced_eos_token_id": 0,
}


def tiny_marian(seed: int = 0, **changes) -> MarianMTModel:
    torch.manual_seed(seed)
    model = MarianMTModel(MarianConfig(**{**OPTIONS, **changes})).eval()
    model.final_logits_bias.normal_()
    model.generation_config.bad_words_ids = [[model.config.pad_token_id]]
    return model


def opus_folder(path: Path, separate_vocabs: bool = False, **options) -> MarianMTModel:
    """Write a model and its tokenizer's files, with a joint vocabulary or one per language."""
    path.mkdir()
    pieces = [train_pieces(path / "source.spm", ENGLISH), train_pieces(path / "target.spm", SPANISH)]
    vocabulary = number_tokens(pieces[0] if separate_vocabs else pieces[0] + pieces[1])
    write_json(path / "vocab.json", vocabulary)
    if separate_vocabs:
        write_json(path / "target_vocab.json", number_tokens(pieces[1]))
    # As on the Hub, without the tokenizer's class, which AutoTokenizer derives from model_type.
    settings = {"source_lang": "en", "target_lang": "es"}
    write_json(path / "tokenizer_config.json", settings | ({"separate_vocabs": True} if separate_vocabs else {}))
    model = opus_model(len(vocabulary), share_encoder_decoder_embeddings=not separate_vocabs, **options)
    model.save_pretrained(path)
    return model


def train_sentencepiece(file: Path, sentences: Iterable[str], **options: Any) -> sentencepiece.SentencePieceProcessor:
    """Train a small model and return its processor."""
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        **{"sentence_iterator": iter([*sentences] * 10), "model_writer": trained, "minloglevel": 2, "num_threads": 1},
        **{"vocab_size": PIECES, "hard_vocab_limit": False, **options},
    )
    file.write_bytes(trained.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())


def train_pieces(file: Path, sentences: list[str]) -> list[str]:
    processor = train_sentencepiece(file, sentences)
    return [processor.id_to_piece(i) for i in range(3, len(processor))]


def number_tokens(pieces: list[str]) -> dict[str, int]:
    """Number tokens as OPUS-MT does, with `<pad>` last."""
    return {token: i for i, token in enumerate(dict.fromkeys(["</s>", "<unk>", *pieces, "<pad>"]))}


def opus_model(vocab_size: int, **options) -> MarianMTModel:
    pad = vocab_size - 1
    options |= {"pad_token_id": pad, "decoder_start_token_id": pad, "max_position_embeddings": 1024}
    model = tiny_marian(vocab_size=vocab_size, decoder_layers=2, **options)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "encoder_attn" in name and weight.dim() == 2:
                weight *= 8  # so that outputs depend on the source
        model.final_logits_bias[0, pad] = 0  # as in OPUS-MT
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_tokens.weight[pad] = 0
    return model


def write_json(file: Path, content: dict) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
