"""The model card of a run."""

import shlex
import shutil

from modeling_random_transformer import cli


def test_the_command_in_the_model_card_repeats_the_run(finished, copied, monkeypatch):
    """It has no absolute paths, so that it can be published, and runs in a folder with the files."""
    card = (copied / "out" / "README.md").read_text()
    assert str(finished) not in card
    text = card.split("## Training\n\n```sh\n")[1].split("```")[0]
    program, verb, *flags = shlex.split(text.replace("\\\n", " "))
    assert (program, verb) == ("random-transformer", "train")
    before = (copied / "out" / "model.safetensors").read_bytes()
    shutil.rmtree(copied / "out")
    monkeypatch.chdir(copied)
    assert cli.main([verb, *flags, "--use_cpu"]) == 0
    assert (copied / "out" / "model.safetensors").read_bytes() == before
