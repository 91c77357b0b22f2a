"""Train the SentencePiece model of the comparison on Multi30k, and write its pieces as a vocabulary of JoeyNMT."""

from pathlib import Path

import sentencepiece

FOLDER = Path("outputs/sentencepiece")
FOLDER.mkdir(parents=True, exist_ok=True)
sentencepiece.SentencePieceTrainer.train(
    input="data/multi30k/train.en,data/multi30k/train.de",
    model_prefix=str(FOLDER / "joint"),
    vocab_size=4000,
    character_coverage=1.0,
    unk_id=0,
    pad_id=1,
    bos_id=2,
    eos_id=3,
    pad_piece="<pad>",
)
model = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "joint.model"))
pieces = [model.id_to_piece(i) for i in range(len(model))]
(FOLDER / "vocabulary.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
