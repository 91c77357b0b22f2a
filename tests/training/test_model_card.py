"""The model card of a run."""

import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers.trainer
from huggingface_hub import ModelCard

from modeling_random_transformer import cli
from modeling_random_transformer.inference.confidence import Calibration
from modeling_random_transformer.training import preparation
from modeling_random_transformer.training.run_record import TRAINING_RECORD
from tests.helpers.training import UNSCORED, run


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


@pytest.fixture
def uploaded(monkeypatch):
    """The model cards that were uploaded. If the list contains an exception, the next upload raises it."""
    uploads = []

    def upload_folder(folder_path, **_):
        if uploads and isinstance(uploads[0], Exception):
            raise uploads.pop()
        uploads.append((Path(folder_path) / "README.md").read_text())

    hub = SimpleNamespace(create_repo=lambda *_, **__: SimpleNamespace(repo_id="me/model"), upload_folder=upload_folder)
    monkeypatch.setattr(transformers.trainer, "hf_api", lambda: hub, raising=False)
    for name, function in vars(hub).items():  # of an older transformers
        monkeypatch.setattr(transformers.trainer, name, function, raising=False)
    return uploads


def test_the_model_is_uploaded_with_its_card(corpus, uploaded):
    options = {"push_to_hub": True, "hub_strategy": "end", "hub_license": "cc-by-4.0", **UNSCORED}
    options |= {"hub_token": "hf_secret", "hub_model_id": "me/private"}
    folder = run(corpus, "out", max_steps=2, **options).folder
    assert uploaded == [(folder / "README.md").read_text()]
    for text in (*uploaded, (folder / TRAINING_RECORD).read_text()):
        assert "hf_secret" not in text
        assert "me/private" not in text
    assert "random-transformer train" in uploaded[0]
    assert "\nlicense: cc-by-4.0\n" in uploaded[0]


def test_the_same_command_repeats_a_failed_upload(corpus, uploaded):
    uploaded.append(ConnectionError("no network"))
    options = {"max_steps": 2, "push_to_hub": True, "hub_strategy": "end", "hub_license": "cc-by-4.0"}
    with pytest.raises(ConnectionError):
        run(corpus, "out", **options)
    weights = (corpus / "out" / "model.safetensors").read_bytes()
    result = run(corpus, "out", **options)
    assert uploaded == [(result.folder / "README.md").read_text()]
    assert {*result.scores} == {"test"}
    assert (result.folder / "model.safetensors").read_bytes() == weights


def test_an_upload_needs_a_license(corpus):
    with pytest.raises(ValueError, match=r"hub_license must be given with push_to_hub, got None\."):
        run(corpus, "out", push_to_hub=True)
    assert not (corpus / "out").exists()


@pytest.mark.parametrize(
    "options", [{"hub_model_id": "me/m"}, {"hub_strategy": "end"}, {"hub_token": "hf"}, {"hub_private_repo": False}]
)
def test_arguments_of_an_upload_need_an_upload(options, corpus):
    [name] = options
    with pytest.raises(ValueError, match=f"{name} must be unset without push_to_hub, got "):
        run(corpus, "out", **options)
    assert not (corpus / "out").exists()


def test_the_card_states_languages_and_the_calibration_of_confidence(corpus):
    options = {"max_steps": 2, "source_lang": ["es"], "target_lang": ["pt-BR"], "vocab_size": 300, **UNSCORED}
    folder = run(corpus, "out", **options).folder
    calibration = Calibration(41.26, 1200, weights=[1.0] * 6, bias=0.0, length_ratio=1.0, scripts=["LATIN"])
    calibration.save(folder)
    (folder / "README.md").unlink()
    run(corpus, "out", **options)
    card = (folder / "README.md").read_text()
    assert ModelCard(card).data.language == ["es", "pt-BR"]
    assert "at least 41.3 chrF++,\nfitted on 1,200 validation pairs." in card
    assert "\n## Intended use and limits\n" in card


def test_a_file_whose_name_is_not_utf8(copied, monkeypatch):
    """The card is written after the training, which must not be lost."""
    monkeypatch.setattr(preparation.logger, "disabled", True)  # pytest-xdist cannot send a log with this name
    (copied / "train.a").rename(copied / "train\udcff.a")
    result = run(copied, "other", source_file=str(copied / "train\udcff.a"), max_steps=2, **UNSCORED)
    assert "train\\udcff.a" in (result.folder / "README.md").read_text()
