"""Ensembles: average of log-probabilities in `generate()`, with caches, beams, sampling and mixed members."""

import copy

import pytest
import torch
from tokenizers import normalizers

from modeling_random_transformer import DynamicInt8Config, Seq2SeqPipeline, cli
from modeling_random_transformer.decoding_random_transformer import FastDecodingCache
from modeling_random_transformer.extras.ensemble import EnsembleForSeq2SeqLM
from modeling_random_transformer.inference import score_pairs, translate, translate_file, translate_n_best
from modeling_random_transformer.inference.loading import load_models
from tests.helpers.foreign import foreign_model
from tests.helpers.marian import opus_folder as marian_folder
from tests.helpers.marian import train_sentencepiece
from tests.helpers.models import EOS
from tests.helpers.translation import SENTENCES, multilingual_translator, random_translator, some_texts

TEXTS = some_texts(8)
SHORT = {"max_new_tokens": 10, "progress": False}
SEARCHES = {
    "greedy": {"num_beams": 1},
    "beams": {"num_beams": 4},
    "sampling": {"num_beams": 1, "do_sample": True, "seed": 3},
    "uncached": {"num_beams": 2, "use_cache": False},
}


@pytest.fixture(scope="module")
def second_member():
    """A member with other sizes and other layers."""
    return random_translator(1, d_model=32, encoder_layers=1, norm_order="post").double()


@pytest.fixture(scope="module")
def marian(tokenizer):
    """A member of another architecture, whose beams do not share a source."""
    return foreign_model("Marian", vocab_size=len(tokenizer), forced_eos_token_id=None)


@pytest.mark.parametrize("search", SEARCHES)
def test_equal_members_translate_like_one(model, tokenizer, search):
    options = SHORT | SEARCHES[search]
    expected = translate(TEXTS, model, tokenizer, **options)
    for members in ([model], [model, model]):
        assert translate(TEXTS, EnsembleForSeq2SeqLM(members), tokenizer, **options) == expected


@pytest.mark.parametrize("names", [("model", "second_member"), ("marian", "model", "second_member")])
def test_scores_are_averages_of_log_probabilities(names, tokenizer, request):
    """The reference runs each member without a cache on the sequences that the ensemble has generated."""
    members = [request.getfixturevalue(name) for name in names]
    ensemble = EnsembleForSeq2SeqLM(members)
    inputs = tokenizer(TEXTS[:3], return_tensors="pt", padding=True)
    options = {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 1.0, "max_new_tokens": 8}
    outputs = ensemble.generate(**inputs, **options, output_scores=True, return_dict_in_generate=True)
    sequences = outputs.sequences
    copies = {name: value.repeat_interleave(2, dim=0) for name, value in inputs.items()}
    with torch.no_grad():
        logits = [member(**copies, decoder_input_ids=sequences[:, :-1]).logits for member in members]
        whole = ensemble(**copies, decoder_input_ids=sequences[:, :-1]).logits
    average = torch.stack([values.log_softmax(-1) for values in logits]).mean(0).log_softmax(-1)
    torch.testing.assert_close(whole.log_softmax(-1), average)
    targets = sequences[:, 1:]
    ended = (targets == EOS).cumsum(dim=1) > (targets == EOS)
    steps = average.gather(-1, targets[..., None])[..., 0].masked_fill(ended, 0)
    lengths = (~ended).sum(dim=1)
    torch.testing.assert_close(outputs.sequences_scores, (steps.sum(dim=1) / lengths).float(), rtol=1e-4, atol=1e-4)


def test_members_use_their_fast_decoders(model, second_member, tokenizer, monkeypatch):
    assert model.fallback_reason() is second_member.fallback_reason() is None  # their comparison has caches of its own
    steps = []
    begin = FastDecodingCache.current_step
    monkeypatch.setattr(FastDecodingCache, "current_step", lambda self, *args: steps.append(self) or begin(self, *args))
    translate(TEXTS[:2], EnsembleForSeq2SeqLM([model, second_member]), tokenizer, num_beams=3, **SHORT)
    assert len(set(map(id, steps))) == 2


@pytest.mark.parametrize("name", ["prompt_lookup_num_tokens", "assistant_model"])
def test_assisted_decoding(name, model, second_member, marian, tokenizer):
    """The members' caches drop the tokens that the ensemble rejects."""
    ensemble = EnsembleForSeq2SeqLM([model, second_member, marian])
    proposals = {name: second_member if name == "assistant_model" else 3}
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt")
        expected = ensemble.generate(**inputs, max_new_tokens=12)
        assert torch.equal(ensemble.generate(**inputs, max_new_tokens=12, **proposals), expected)


def test_one_prompt_for_several_sources(model, second_member, tokenizer):
    inputs = tokenizer(TEXTS[:3], return_tensors="pt", padding=True)
    prompt = torch.tensor([[model.config.decoder_start_token_id, 5]])
    with pytest.raises(ValueError, match="multiple of the sources' 3 rows, got 1"):
        EnsembleForSeq2SeqLM([model, second_member]).generate(**inputs, decoder_input_ids=prompt, num_beams=3)


def test_batching_does_not_change_translations(model, marian, tokenizer):
    ensemble = EnsembleForSeq2SeqLM([model, marian])
    expected = [translate([text], ensemble, tokenizer, **SHORT)[0] for text in TEXTS]
    assert translate(TEXTS, ensemble, tokenizer, **SHORT) == expected
    assert expected != translate(TEXTS, model, tokenizer, **SHORT)


def test_the_pipeline_and_scoring_take_an_ensemble(model, second_member, tokenizer):
    ensemble = EnsembleForSeq2SeqLM([model, second_member])
    pipe = Seq2SeqPipeline(ensemble, tokenizer, device="cpu", num_beams=4, max_new_tokens=10, length_penalty=0.6)
    assert [answer["generated_text"] for answer in pipe(TEXTS)] == translate(TEXTS, ensemble, tokenizer, **SHORT)
    [candidates] = translate_n_best(TEXTS[:1], ensemble, tokenizer, n_best=2, prefixes=["el"], **SHORT)
    assert all(candidate.translation.startswith("el") for candidate in candidates)
    pairs = [("the boy", "el niño")]
    [[score], *alone] = ([*score_pairs(scorer, tokenizer, pairs)] for scorer in (ensemble, model, second_member))
    assert score.log_probability >= sum(member.log_probability for [member] in alone) / 2


def test_members_of_several_languages(tokenizer, tmp_path):
    model, languages = multilingual_translator()
    for name, saved in (("first", languages), ("second", languages), ("other", tokenizer)):
        (model if name != "other" else random_translator()).save_pretrained(tmp_path / name)
        saved.save_pretrained(tmp_path / name)
    ensemble, loaded = load_models([tmp_path / "first", tmp_path / "second"])
    options = {"src_lang": "en", "tgt_lang": "fr", "num_beams": 2, **SHORT}
    assert translate(TEXTS, ensemble, loaded, **options) == translate(TEXTS, model, languages, **options)
    with pytest.raises(ValueError, match="must have the same tokenizer"):
        load_models([tmp_path / "other", tmp_path / "first"])


def test_members_that_split_texts_differently(tokenizer, tmp_path):
    """The tokens are the same. The second member would get token ids that are not those of its training."""
    other = copy.deepcopy(tokenizer)
    other.backend_tokenizer.normalizer = normalizers.Lowercase()
    for name, saved in (("first", tokenizer), ("second", other)):
        random_translator().save_pretrained(tmp_path / name)
        saved.save_pretrained(tmp_path / name)
    with pytest.raises(ValueError, match="must have the same tokenizer"):
        load_models([tmp_path / "first", tmp_path / "second"])


def test_members_with_other_sentencepiece_models(tmp_path):
    for name, texts in (("first", SENTENCES[:3]), ("second", SENTENCES[3:])):
        marian_folder(tmp_path / name)
        train_sentencepiece(tmp_path / name / "source.spm", texts)
    with pytest.raises(ValueError, match="must have the same tokenizer"):
        load_models([tmp_path / "first", tmp_path / "second"])
    assert load_models([tmp_path / "first", tmp_path / "first"])


def test_members_in_other_dtypes(tokenizer, tmp_path):
    random_translator().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    quantized, _ = load_models([tmp_path, tmp_path], dtype="int8")
    assert all(member.config.quantization_config is not None for member in quantized.members)
    mixed = EnsembleForSeq2SeqLM([random_translator().bfloat16(), quantized.members[0], random_translator()])
    assert isinstance(mixed.members[1].config.quantization_config, DynamicInt8Config)
    assert len(translate(TEXTS, mixed, tokenizer, **SHORT)) == len(TEXTS)


def test_invalid_members_and_saving(model, tmp_path):
    for name, value in (("eos_token_id", 5), ("decoder_start_token_id", 0)):
        message = f"members must have the same {name}, got {getattr(model.config, name)}, {value}"
        with pytest.raises(ValueError, match=message):
            EnsembleForSeq2SeqLM([model, random_translator(**{name: value})])
    with pytest.raises(ValueError, match="members must be at least one model, got none"):
        EnsembleForSeq2SeqLM([])
    with pytest.raises(ValueError, match="an ensemble cannot be saved"):
        EnsembleForSeq2SeqLM([model]).save_pretrained(tmp_path)


def test_members_are_not_changed(model, tokenizer):
    member = random_translator().train()
    ensemble = EnsembleForSeq2SeqLM([member, model])
    assert member.training
    assert not model.training
    assert ensemble.training
    assert translate(TEXTS[:2], ensemble, tokenizer, **SHORT)
    assert member.training
    ensemble.generation_config.num_beams = 7
    assert member.generation_config.num_beams != 7
    assert not ensemble.eval().training
    assert not member.training


@pytest.mark.usefixtures("_reset_accelerate")
def test_several_models_of_the_command_and_files(tokenizer, tmp_path, capsys):
    folders = [tmp_path / "first", tmp_path / "second"]
    for seed, folder in enumerate(folders):
        random_translator(seed).double().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    ensemble, tokenizer = load_models(folders)
    expected = translate(TEXTS, ensemble, tokenizer, progress=False)
    models = [argument for folder in folders for argument in ("--model", str(folder))]
    assert cli.main(["translate", *models, *TEXTS, "--device", "cpu", "--max_tokens_per_batch", "200"]) == 0
    assert capsys.readouterr().out.splitlines() == expected
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    translate_file(tmp_path / "in.txt", tmp_path / "out.txt", ensemble, tokenizer)
    assert (tmp_path / "out.txt").read_text().splitlines() == expected
