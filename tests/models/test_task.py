"""A task of one of our models: nothing is left out in silence, and every other task stays as fairseq made it."""

from __future__ import annotations

import logging
import pickle
from argparse import Namespace
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from fairseq.data import ConcatDataset, Dictionary, FairseqDataset, ResamplingDataset
from fairseq.data.audio.data_cfg import S2TDataConfig
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.speech_to_text import SpeechToTextTask
from fairseq.tasks.text_to_speech import TextToSpeechTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from leapformer_fairseq.models.augmentation import change_speed
from leapformer_fairseq.models.task import TASKS, adapt
from leapformer_fairseq.runtime import audio
from leapformer_fairseq.support.errors import LeapformerError

from .tiny import SIZES, dictionary

WORDS = dictionary()
CONCATENATED = "dataset_transforms: {_train: [concataugment]}"


class Sentences(FairseqDataset):
    """20 sentences of 5 tokens; `shapes` are those of --num-batch-buckets."""

    def __init__(self, shapes: Any = None) -> None:
        self.shapes = shapes

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index

    def num_tokens(self, index: int) -> int:
        return 5

    size = num_tokens

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return np.full(len(indices), 5)

    def ordered_indices(self) -> np.ndarray:
        return np.arange(20)[::-1].copy()

    def get_batch_shapes(self) -> Any:
        return self.shapes

    def collater(self, samples: list[int]) -> list[int]:
        return samples


class Shuffled(Sentences):
    epoch = 0

    def ordered_indices(self) -> np.ndarray:
        return np.random.permutation(20)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def translation(ours: bool) -> TranslationTask:
    task = TranslationTask(TranslationConfig(), WORDS, WORDS)
    if ours:
        adapt(task, Namespace(), *TASKS.values())
    return task


def batches(task: Any, dataset: FairseqDataset, **options: Any) -> list[list[int]]:
    iterator = task.get_batch_iterator(dataset, max_sentences=16, required_batch_size_multiple=8, **options)
    return [sorted(int(i) for i in batch) for batch in iterator.frozen_batches]


class TestBatches:
    def test_the_last_one_is_kept_for_our_models_alone(self):
        ours, stock = (batches(translation(ours), Sentences()) for ours in (True, False))
        assert [len(batch) for batch in stock] == [16], "fairseq drops 4 of 20 sentences"
        assert ours == [*stock, [0, 1, 2, 3]]

    def test_a_training_that_resumes_in_a_later_epoch_has_the_same_ones(self):
        found, stock = [], []
        for ours, batches_of in ((True, found), (False, stock)):
            for epoch in (1, 4):
                dataset = Shuffled()
                iterator = translation(ours).get_batch_iterator(dataset, max_sentences=4, seed=1, epoch=epoch)
                assert (iterator.epoch, dataset.epoch) == (epoch, epoch)
                batches_of.append([list(map(int, batch)) for batch in iterator.frozen_batches])
        assert found[0] == found[1] == stock[0] and stock[0] != stock[1], "fairseq's differ"

    def test_batches_that_fairseq_makes_for_each_epoch_stay_so(self):
        made = [
            translation(True).get_batch_iterator(Shuffled(), max_sentences=4, seed=1, epoch=epoch, **never_kept)
            for epoch in (1, 4)
            for never_kept in ({"disable_iterator_cache": True},)
        ]
        first, fourth = ([list(map(int, batch)) for batch in one.frozen_batches] for one in made)
        assert first != fourth

    def test_every_model_of_ours_asks_for_it(self):
        """Seen in what all but one of them refuse: a task for language models."""
        for arch in (name for name in MODEL_REGISTRY if name.startswith("leapformer_")):
            task = LanguageModelingTask(SimpleNamespace(add_bos_token=False), WORDS, output_dictionary=WORDS)
            args = Namespace(arch=arch, **SIZES, length_predictor=None, tokens_per_sample=8)
            if arch == "leapformer_lm":
                MODEL_REGISTRY[arch].build_model(args, task)
                assert {"get_batch_iterator", "inference_step", "load_dataset"} <= set(vars(task))
            else:
                with pytest.raises(LeapformerError, match=f"'{arch}' is for --task|--arch {arch} needs --task"):
                    MODEL_REGISTRY[arch].build_model(args, task)

    def test_none_of_fixed_shapes_and_none_of_nothing(self):
        shapes = np.array([(16, 5)])
        assert batches(translation(True), Sentences(shapes)) == batches(translation(False), Sentences(shapes))
        empty = Sentences()
        empty.ordered_indices = lambda: np.arange(0)
        assert batches(translation(True), empty) == []

    def test_full_batches_stay_as_they_are(self):
        whole = {"max_tokens": 40}
        assert batches(translation(True), Sentences(), **whole)[:2] == batches(translation(False), Sentences(), **whole)

    def test_a_data_set_can_be_sent_to_another_process(self):
        task, dataset = translation(True), Sentences()
        expected = batches(task, dataset)
        assert batches(task, pickle.loads(pickle.dumps(dataset))) == expected


@pytest.mark.parametrize(
    ("served", "refused"), [("text_to_speech", "speech_to_text"), ("translation", "masked_lm"), ("masked_lm", None)]
)
def test_a_model_of_another_task_is_refused(served, refused):
    kinds = {name: kind for kind, name in TASKS.items()}
    stand_in = object.__new__(kinds[refused or served])
    wrong = f"'leapformer_x' is for --task {served}, not for {refused}; choose an architecture for it"
    with pytest.raises(LeapformerError, match=wrong) if refused else nullcontext():
        adapt(stand_in, Namespace(arch="leapformer_x"), served)


def test_the_class_and_other_tasks_are_left_alone():
    before = dict(vars(TranslationTask)), dict(vars(LanguageModelingTask)), dict(vars(SpeechToTextTask))
    ours = translation(True)
    after = dict(vars(TranslationTask)), dict(vars(LanguageModelingTask)), dict(vars(SpeechToTextTask))
    assert before == after
    assert "get_batch_iterator" in vars(ours) and "get_batch_iterator" not in vars(translation(False))


def test_a_second_model_changes_nothing_more():
    task = translation(True)
    expected = batches(task, Sentences())
    adapt(task, Namespace(), *TASKS.values())
    assert batches(task, Sentences()) == expected


@pytest.mark.parametrize("ours", [True, False])
def test_empty_lines_and_unknown_words(ours, caplog):
    with caplog.at_level(logging.WARNING):
        found, lengths = translation(ours).get_interactive_tokens_and_lengths(["w1 unheard", "", "w2"], str)
    assert [len(tokens) for tokens in found] == list(lengths) == [3, 1, 2]
    told = "'w1 unheard': not in the dictionary: unheard; prepare the text as in training"
    assert [record.message for record in caplog.records] == ours * [
        told,
        "an empty line: its translation is empty",
    ]


def test_language_modelling_needs_a_block():
    task = LanguageModelingTask(SimpleNamespace(add_bos_token=False), WORDS, output_dictionary=WORDS)
    task.args.tokens_per_sample = 0
    adapt(task, Namespace(), "language_modeling")
    with pytest.raises(LeapformerError, match="--tokens-per-sample leaves 0 new tokens per block; give at least 1"):
        task.load_dataset("test")


@pytest.mark.parametrize("flag", ["print_alignment", "constraints"])
def test_language_models_have_no_source(flag):
    task = LanguageModelingTask(SimpleNamespace(add_bos_token=False), WORDS, output_dictionary=WORDS)
    adapt(task, Namespace(), "language_modeling")
    with pytest.raises(LeapformerError, match=f"--{flag.replace('_', '-')}: a language model has no source for that"):
        task.build_generator([], Namespace(**{flag: "hard"}))


def speech(
    folder: Path,
    *audio_paths: Path,
    kind: type = SpeechToTextTask,
    splits: str = "dev",
    options: Mapping[str, float] = MappingProxyType({}),
    **columns: str,
) -> Any:
    """A task of ours with manifests of these recordings."""
    names, values = "".join(f"\t{name}" for name in columns), "".join(f"\t{value}" for value in columns.values())
    rows = [f"id{i}\t{path}\t48\ta{values}" for i, path in enumerate(audio_paths)]
    for split in splits.split(","):
        (folder / f"{split}.tsv").write_text("\n".join([f"id\taudio\tn_frames\ttgt_text{names}", *rows]) + "\n")
    (folder / "config.yaml").write_text("input_feat_per_channel: 80\nsampling_alpha: 0.5\n")
    task = kind.__new__(kind)
    words = Dictionary()
    words.add_symbol("a")
    task.args = SimpleNamespace(data=str(folder), seed=1, n_frames_per_step=1, **options)
    task.datasets, task.speaker_to_id, task.multitask_tasks = {}, None, {}
    task.data_cfg, task.src_dict, task.tgt_dict = S2TDataConfig(folder / "config.yaml"), words, words
    task.build_tokenizer = task.build_bpe = lambda args: None
    adapt(task, Namespace(), *TASKS.values())
    return task


def tone(path: Path, samples: int = 8_000) -> Path:
    wave = 0.3 * np.sin(2 * np.pi * 440 * np.arange(samples) / audio.SAMPLE_RATE)
    soundfile.write(path, wave, audio.SAMPLE_RATE)
    return path


class TestManifests:
    @pytest.mark.parametrize("bad", ["gone.wav", "gone.npy", "gone.zip:10:20", "broken.wav"])
    def test_unreadable_row_is_named(self, tmp_path, bad):
        (tmp_path / "broken.wav").write_bytes(b"RIFF nothing")
        task = speech(tmp_path, tone(tmp_path / "good.wav"), tmp_path / bad)
        task.load_dataset("dev")
        dataset = pickle.loads(pickle.dumps(task.datasets["dev"]))  # as a worker process gets it
        assert dataset[0].source.shape == (48, 80)
        with pytest.raises(LeapformerError, match=rf"dev\.tsv, row 2 \(.*{bad}\)"):
            dataset[1]

    def test_in_each_of_several_manifests(self, tmp_path):
        task = speech(tmp_path, tone(tmp_path / "a.wav"), tmp_path / "gone.wav", splits="train1,train2")
        task.load_dataset("train1,train2")
        dataset = task.datasets["train1,train2"]
        assert isinstance(dataset, ConcatDataset) and isinstance(dataset.datasets[0], ResamplingDataset)
        named = set()
        for index in range(len(dataset)):
            try:
                dataset[index]
            except LeapformerError as error:
                named.add(str(error).partition(", row 2")[0])
        assert named == {"train1.tsv", "train2.tsv"}

    @pytest.mark.parametrize(
        ("split", "lagging", "ratio", "warned"),
        [
            ("train1,train2", "1-2,offline", 2, True),
            ("train1", "1", 5, True),
            ("train1", "1", 6, False),
            ("train1", "offline", 2, False),
            ("dev", "1", 2, False),
        ],
    )
    def test_whose_speech_is_slower_than_wait_k(self, tmp_path, caplog, split, lagging, ratio, warned):
        """12 states and two tokens, the end among them."""
        task = speech(tmp_path, tone(tmp_path / "a.wav"), tmp_path / "b.wav", splits=split)
        args = Namespace(**SIZES, waitk_lagging=lagging, fixed_pre_decision_ratio=ratio)
        MODEL_REGISTRY["leapformer_simulst"].build_model(args, task)
        with caplog.at_level(logging.WARNING):
            task.load_dataset(split)
        lines = [line for line in caplog.messages if "outruns the speech" in line]
        assert len(lines) == warned
        if warned:
            assert "100% of the target tokens" in lines[0]
            assert f"--fixed-pre-decision-ratio 6 instead of {ratio}" in lines[0]

    def test_of_what_is_translated_interactively(self, tmp_path):
        task = speech(tmp_path)
        dataset = task.build_dataset_for_inference([str(tone(tmp_path / "a.wav")), "gone.wav"], [48, 48])
        assert dataset[0].source.shape == (48, 80)
        with pytest.raises(LeapformerError, match=r"interactive\.tsv, row 2 \(gone\.wav\)"):
            dataset[1]

    @pytest.mark.parametrize(
        ("rate", "scale", "reason"), [(44_100, 1, "44100 Hz, 16000 Hz is needed"), (16_000, 2**15, "samples of")]
    )
    def test_with_another_rate_or_scale(self, tmp_path, rate, scale, reason):
        samples = (0.3 * scale * np.sin(np.arange(rate))).astype(np.float32)
        soundfile.write(tmp_path / "a.wav", samples, rate, subtype="FLOAT")
        dataset = speech(tmp_path).build_dataset_for_inference([str(tmp_path / "a.wav")], [48])
        with pytest.raises(LeapformerError, match=reason):
            dataset[0]

    def test_floats_are_read_once_and_lengths_are_bounded(self, tmp_path, monkeypatch):
        path, task, reads = str(tmp_path / "a.wav"), speech(tmp_path), []
        soundfile.write(path, 0.3 * np.sin(np.arange(8_000)), 16_000, subtype="FLOAT")
        read = soundfile.SoundFile.read
        monkeypatch.setattr(soundfile.SoundFile, "read", lambda *given, **more: reads.append(1) or read(*given, **more))
        assert task.build_dataset_for_inference([path], [48])[0].source.shape == (48, 80) and len(reads) == 1
        assert task.get_interactive_tokens_and_lengths([path], None) == ([path], [48])
        monkeypatch.setattr(audio, "LONGEST", 1_000)
        with pytest.raises(LeapformerError, match="more than fits in memory"):
            task.get_interactive_tokens_and_lengths([path], None)
        assert len(reads) == 2, "nothing was decoded to say so"

    def test_joined_sentences_have_the_frames_and_texts_of_all(self, tmp_path):
        """The recordings are tones of different lengths; pauses between them are silent, or repeat their frames."""
        lengths = [8_000, 12_000, 16_000]
        paths = [tone(tmp_path / f"{length}.wav", length) for length in lengths]
        task = speech(tmp_path, *paths, splits="train,dev", options={"join_sentences": 3})
        for split in ("train", "dev"):
            task.load_dataset(split)
        whole = {len(task.datasets["dev"][i].source): task.datasets["dev"][i].source for i in range(3)}
        assert len(whole) == 3 and all(len(task.datasets["dev"][i].target) == 2 for i in range(3))
        silence = float(audio.fbank(np.zeros(8_000, np.float32), audio.SAMPLE_RATE)[0, 0])
        dataset, counts, paused = pickle.loads(pickle.dumps(task.datasets["train"])), [], 0
        for epoch in range(1, 13):
            dataset.set_epoch(epoch)
            for index in range(3):
                item, again = dataset[index], dataset[index]
                assert (item.source == again.source).all() and (item.target == again.target).all(), "nothing is drawn"
                counts.append(len(item.target) - 1)
                first = len(task.datasets["dev"][index].source)
                assert (item.source[:first] == whole[first]).all() and bool(np.isfinite(item.source).all())
                spoken = len(item.source) - int((item.source == silence).all(1).sum())
                paused += spoken < len(item.source)
                assert spoken >= first + (counts[-1] - 1) * min(whole)
        assert set(counts) == {1, 2, 3} and paused > 3, counts
        assert len({tuple(counts[i : i + 3]) for i in range(0, len(counts), 3)}) > 1, "epochs differ"

    def test_sentences_that_cannot_be_joined(self, tmp_path):
        paths = tone(tmp_path / "a.wav"), tmp_path / "gone.wav"
        task = speech(tmp_path, *paths, splits="train", options={"join_sentences": 0})
        with pytest.raises(LeapformerError, match="--join-sentences 0: give at least 1"):
            task.load_dataset("train")
        task = speech(tmp_path, *paths, splits="train", options={"join_sentences": 9})
        task.load_dataset("train")
        with pytest.raises(LeapformerError, match=r"train\.tsv, row .*row 2 \(.*gone\.wav\)"):
            task.datasets["train"][0]
        (tmp_path / "config.yaml").write_text(f"{CONCATENATED}\n")
        task.data_cfg = S2TDataConfig(tmp_path / "config.yaml")
        with pytest.raises(LeapformerError, match=r"--join-sentences.*concataugment"):
            task.load_dataset("train")

    @pytest.mark.parametrize("rate", [0.9, 1, 1.08])
    def test_filterbanks_at_another_speed_are_those_of_the_waveform_at_that_speed(self, rate):
        """Noise with formants that swells and fades; the highest bins of slower speech are empty in truth."""
        count = 48_000
        hertz, swelling = np.fft.rfftfreq(count, 1 / audio.SAMPLE_RATE), np.sin(3 * np.arange(count) / 16_000) ** 2
        formants = sum(1 / (1 + ((hertz - place) / 90) ** 2) for place in (500, 1_700, 3_000)) + 0.01
        noise = np.random.default_rng(1).standard_normal(count) * (0.02 + swelling)
        spectrum, resampled = np.fft.rfft(noise) * formants, round(count / rate)
        kept = np.zeros(resampled // 2 + 1, complex)
        kept[: len(hertz)] = spectrum[: len(kept)]
        waves = np.fft.irfft(spectrum, count), np.fft.irfft(kept, resampled) * resampled / count
        banks, wanted = (audio.fbank((wave / 3).astype(np.float32), audio.SAMPLE_RATE)[:, :76] for wave in waves)
        found = change_speed(np.pad(banks, ((0, 0), (0, 4)), mode="edge"), rate)[:, :76]
        assert found.dtype == banks.dtype and found.shape == wanted.shape
        for axis in (0, 1):  # the spectrum over all frames, and the loudness of each
            true, off, before = (x.mean(axis) for x in (wanted, found, np.resize(banks, found.shape)))
            assert np.abs(off - true).mean() < 0.2 * np.abs(before - true).mean() + 1e-4

    def test_training_alone_hears_other_speeds(self, tmp_path):
        paths = [tone(tmp_path / "a.wav")]
        task = speech(tmp_path, *paths, splits="train,dev", options={"speed_perturbation": 0.2})
        for split in ("train", "dev"):
            task.load_dataset(split)
        dataset = pickle.loads(pickle.dumps(task.datasets["train"]))
        lengths = {len(dataset[0].source) for _ in range(30)}
        assert len(task.datasets["dev"][0].source) == 48
        assert 48 / 1.2 - 1 < min(lengths) < 44 and 53 < max(lengths) < 48 / 0.8 + 1, lengths

    @pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
    def test_speeds_that_cannot_be(self, tmp_path, share):
        task = speech(tmp_path, tmp_path / "a.wav", splits="train", options={"speed_perturbation": share})
        with pytest.raises(LeapformerError, match=f"--speed-perturbation {share}: give a share"):
            task.load_dataset("train")

    @pytest.mark.parametrize("option", ["join_sentences", "speed_perturbation"])
    def test_waveforms_are_neither_joined_nor_played_faster(self, tmp_path, option):
        task = speech(
            tmp_path, tmp_path / "a.wav", splits="train", options={option: 2 if option == "join_sentences" else 0.1}
        )
        (tmp_path / "config.yaml").write_text("use_audio_input: true\n")
        task.data_cfg = S2TDataConfig(tmp_path / "config.yaml")
        with pytest.raises(LeapformerError, match=f"--{option.replace('_', '-')}.*has waveforms"):
            task.load_dataset("train")

    @pytest.mark.parametrize(
        ("durations", "said"),
        [
            ("48", None),
            ("49", "durations of 49 frames are longer than the audio, 48 frames"),
            ("40 8", "2 durations for 1 phonemes"),
            ("-1", "duration '-1' is not a list of whole numbers"),
        ],
    )
    def test_durations_of_speech_to_be_synthesised(self, tmp_path, durations, said):
        task = speech(tmp_path, tone(tmp_path / "a.wav"), kind=TextToSpeechTask, duration=durations)
        if said is None:
            task.load_dataset("dev")
            assert task.datasets["dev"].durations == [[48]]
        else:
            with pytest.raises(LeapformerError, match=rf"dev\.tsv, line 2 \(id0\): {said}.*; correct the row"):
                task.load_dataset("dev")
