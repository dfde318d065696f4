"""The corpus on disk: what fairseq reads of it, that it repeats, and what is refused."""

import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import soundfile

from leapformer_fairseq.cli import corpus as command
from leapformer_fairseq.compat import patches
from leapformer_fairseq.data.corpus import build as building
from leapformer_fairseq.data.corpus import espeak, folder
from leapformer_fairseq.data.corpus.build import SIZES, build
from leapformer_fairseq.data.corpus.folder import Corpus
from leapformer_fairseq.data.corpus.plan import SEED, SPLITS, VOICES, Utterance, fingerprint, of_split, plan
from leapformer_fairseq.data.corpus.synthesize import with_noise
from leapformer_fairseq.data.manifests import read_manifest
from leapformer_fairseq.runtime.audio import SAMPLE_RATE, fbank, read_speech
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.options import parse

from .test_corpus_grammar import VOCABULARY
from .tiny_corpus import TINY_SIZES, build_tiny, tiny_corpus

SNR_DB = (15.0, 35.0)


@pytest.fixture(scope="module")
def tiny() -> Corpus:
    return build_tiny(tiny_corpus())


def contents(folder: Path) -> dict[str, str]:
    names = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in names}


# ---- the plan ------------------------------------------------------------------------------------------------------


def test_splits_share_no_sentence():
    utterances = plan(SIZES, SEED, SNR_DB)
    assert Counter(utterance.split for utterance in utterances) == dict(SIZES)
    assert len({utterance.english for utterance in utterances}) == len(utterances)
    assert {utterance.voice for utterance in utterances} == set(VOICES)


def test_the_default_train_set_has_nearly_every_word_and_half_of_them_often():
    train = (u.english for u in plan(SIZES, SEED, SNR_DB) if u.split == "train")
    counts = Counter(word for sentence in train for word in sentence.split())
    assert 0.98 * VOCABULARY < len(counts) <= VOCABULARY
    assert sum(count >= 20 for count in counts.values()) > 0.5 * VOCABULARY


def test_the_seed_decides():
    first, again, other = (fingerprint(plan(TINY_SIZES, seed, SNR_DB)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_larger_train_set_keeps_the_test_set():
    small, large = (plan({**TINY_SIZES, "train": train}, 1, SNR_DB) for train in (12, 300))
    assert of_split(small, "test") == of_split(large, "test")
    assert of_split(small, "dev") == of_split(large, "dev")


@pytest.mark.parametrize(
    ("sizes", "seed", "snr_db", "message"),
    [
        ({**TINY_SIZES, "dev": 0}, 1, SNR_DB, "0 dev utterances"),
        ({**TINY_SIZES, "train": 10**9}, 1, SNR_DB, "1000000000 train utterances"),
        (TINY_SIZES, -1, SNR_DB, "seed -1"),
        (TINY_SIZES, 1, (30.0, 10.0), "--snr-db 30.0 10.0"),
        (TINY_SIZES, 1, (float("nan"), 10.0), "--snr-db nan"),
    ],
)
def test_impossible_plans_are_refused(sizes, seed, snr_db, message):
    with pytest.raises(LeapformerError, match=message):
        plan(sizes, seed, snr_db)


# ---- speech --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", [0.0, 1.0, 2.0])
def test_noise_has_the_asked_ratio(colour):
    speech = 0.1 * np.sin(np.arange(SAMPLE_RATE) / 10, dtype=np.float32)
    utterance = Utterance("dev", 0, "", "", "en-us", 150, 50, 20.0, colour, noise_seed=3)
    noise = with_noise(speech, utterance) - speech
    assert 10 * np.log10(np.mean(speech**2) / np.mean(noise**2)) == pytest.approx(20.0, abs=0.05)


def test_speech_is_at_16_khz_and_faster_at_a_higher_rate():
    speaker = espeak.Espeak()
    slow, fast = (speaker.say("we must wait in the kitchen", "en-us", rate, 50) for rate in (120, 240))
    assert slow.dtype == np.float32 and slow.ndim == 1 and 0.1 < np.abs(slow).max() <= 1.0
    assert 1.0 < len(fast) / SAMPLE_RATE < len(slow) / SAMPLE_RATE < 4.0


def test_no_voice_has_breath_because_it_would_not_repeat():
    variants = Path(espeak.require_loader().get_data_path(), "voices", "!v")
    definitions = {name: (variants / name).read_text() for name in sorted(v.split("+")[1] for v in VOICES if "+" in v)}
    assert not [name for name, text in definitions.items() if "breath" in text]
    assert "breath" in (variants / "f2").read_text()


def test_an_unknown_language_is_refused():
    with pytest.raises(LeapformerError, match="no voice 'en-nowhere'"):
        espeak.Espeak().say("hello", "en-nowhere", 150, 50)


def test_a_missing_espeak_names_the_extra(monkeypatch, tmp_path):
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("leapformer_fairseq.runtime.espeak.importlib.import_module", missing)
    with pytest.raises(LeapformerError, match=r"pip install 'leapformer-fairseq\[demo\]'"):
        build_tiny(tmp_path / "corpus")
    assert not list(tmp_path.iterdir())


# ---- on disk -------------------------------------------------------------------------------------------------------


def test_manifests_recordings_and_lists_agree(tiny: Corpus):
    for split, size in TINY_SIZES.items():
        rows = list(read_manifest(tiny.folder / f"{split}_st.tsv"))
        transcripts = list(read_manifest(tiny.folder / f"{split}_asr.tsv"))
        sources = (tiny.folder / f"{split}.source").read_text().splitlines()
        assert len(rows) == len(sources) == size == tiny.splits[split].utterances
        assert [row["src_text"] for row in rows] == [row["tgt_text"] for row in transcripts]
        assert [row["tgt_text"] for row in rows] == (tiny.folder / f"{split}.target").read_text().splitlines()
        for source, row in zip(sources, rows, strict=True):
            assert soundfile.info(source).subtype == "PCM_16"
            assert len(fbank(read_speech(source))) == int(row["n_frames"])


def test_subwords_have_fairseqs_ids_and_cover_the_text(tiny: Corpus):
    for task in building.TASKS:
        model = sentencepiece.SentencePieceProcessor(model_file=str(tiny.folder / f"spm_{task}.model"))
        assert (model.bos_id(), model.pad_id(), model.eos_id(), model.unk_id()) == (0, 1, 2, 3)
        dictionary = (tiny.folder / f"spm_{task}.txt").read_text(encoding="utf-8").splitlines()
        assert dictionary == [f"{model.id_to_piece(i)} 1" for i in range(4, model.get_piece_size())]
        for row in read_manifest(tiny.folder / f"train_{task}.tsv"):
            assert model.unk_id() not in model.encode(row["tgt_text"])


@pytest.mark.parametrize("task", building.TASKS)
def test_fairseq_loads_it(tiny: Corpus, task: str, monkeypatch, tmp_path):
    from fairseq.data import Dictionary, encoders
    from fairseq.data.audio.data_cfg import S2TDataConfig
    from fairseq.data.audio.speech_to_text_dataset import SpeechToTextDatasetCreator

    patches.apply()  # paths are those beside the configuration
    monkeypatch.chdir(tmp_path)  # nothing may depend on the working folder
    config = S2TDataConfig(tiny.folder / f"config_{task}.yaml")
    dictionary = Dictionary.load(str(tiny.folder / config.vocab_filename))
    subwords = encoders.build_bpe(type("Namespace", (), config.bpe_tokenizer))
    for split in SPLITS:
        data = SpeechToTextDatasetCreator.from_tsv(
            str(tiny.folder), config, f"{split}_{task}", dictionary, None, subwords, split == "train", 1, 1
        )
        assert len(data) == TINY_SIZES[split]
        rows = list(read_manifest(tiny.folder / f"{split}_{task}.tsv"))
        for item, row in zip((data[index] for index in range(len(data))), rows, strict=True):
            assert item.source.shape == (int(row["n_frames"]), 80)
            if split == "train":  # a few sentences need not have all letters of the others
                assert subwords.decode(dictionary.string(item.target)) == row["tgt_text"]
        assert abs(float(data[0].source.mean())) < 1.0  # normalised


def test_train_text_survives_the_subwords(tiny: Corpus):
    model = sentencepiece.SentencePieceProcessor(model_file=str(tiny.folder / "spm_st.model"))
    for text in (tiny.folder / "train.target").read_text(encoding="utf-8").splitlines():
        assert model.decode(model.encode(text)) == text


# ---- repeating, reusing, refusing ----------------------------------------------------------------------------------


@pytest.mark.full
def test_two_builds_give_the_same_bytes_with_any_number_of_processes_and_an_interrupted_one_starts_over(
    tiny: Corpus, tmp_path, monkeypatch
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(building, "write_manifests", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_tiny(tmp_path / "again")
    assert not (tmp_path / "again").exists()
    again = build_tiny(tmp_path / "again", workers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["again"]
    assert again.checksum == tiny.checksum
    with_paths = ("corpus.json", "config_asr.yaml", "config_st.yaml", *(f"{split}.source" for split in SPLITS))
    first, second = contents(tiny.folder), contents(again.folder)
    assert {k: v for k, v in first.items() if k not in with_paths} == {
        k: v for k, v in second.items() if k not in with_paths
    }


def test_a_finished_corpus_is_reused(tiny: Corpus, monkeypatch):
    monkeypatch.setattr(folder, "_make", lambda *_: pytest.fail("built again"))
    before = contents(tiny.folder)
    assert build_tiny(tiny.folder) == tiny
    assert contents(tiny.folder) == before


def test_a_moved_corpus_gets_its_paths_mended(tmp_path):
    moved = shutil.copytree(tiny_corpus(), tmp_path / "with blank")
    assert build_tiny(moved).folder == moved
    mended = ["dev.source", folder.INFO]
    assert all(str(moved) in (moved / name).read_text() for name in mended)


@pytest.mark.full
def test_another_corpus_is_refused_and_replaced_only_on_demand(tmp_path):
    out = shutil.copytree(tiny_corpus(), tmp_path / "corpus")
    before = contents(out)
    with pytest.raises(LeapformerError, match=r"holds another corpus \(seed 1 there, 7 asked for\).*--overwrite"):
        build(out, TINY_SIZES, seed=7, vocab_size=100)
    assert contents(out) == before
    replaced = build(out, TINY_SIZES, seed=7, vocab_size=100, overwrite=True)
    assert json.loads((out / folder.INFO).read_text())["checksum"] == replaced.checksum
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_a_folder_that_is_no_corpus_is_never_touched(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(LeapformerError, match="is not a corpus"):
        build(tmp_path, TINY_SIZES, overwrite=True)
    assert contents(tmp_path).keys() == {"thesis.txt"}
    (tmp_path / folder.INFO).write_text("{")
    with pytest.raises(LeapformerError, match="lacks valid JSON"):
        build(tmp_path, TINY_SIZES, overwrite=True)


def test_too_small_a_vocabulary_is_refused_before_synthesis(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "synthesize", lambda *_: pytest.fail("synthesised"))
    with pytest.raises(LeapformerError, match="--vocab-size"):
        build(tmp_path / "corpus", TINY_SIZES, vocab_size=5)


def test_the_command_prints_the_sizes(tiny: Corpus, capsys):
    options = ["--train", "12", "--dev", "4", "--test", "4", "--seed", "1", "--vocab-size", "100"]
    assert command.run(parse(command, ["--out", str(tiny.folder), *options])) == 0
    printed = capsys.readouterr().out
    assert tiny.checksum in printed
    assert [line.split()[:2] for line in printed.splitlines()[1:4]] == [["train", "12"], ["dev", "4"], ["test", "4"]]
