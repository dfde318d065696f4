"""Speech translation: pre-trains the encoder on recognition, trains, and translates simultaneously or offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...data.pairs import of_speech
from ...support.errors import LeapformerError
from ...support.lines import read_lines, write_lines
from ..engine import Call, Cell, Command, State
from ..trainings import entries
from .plans import Attention
from .recipe import LIMITS, Recipe, Steps, logged, ours, training

if TYPE_CHECKING:
    from ...data import tables

LONG = "dev-long"
SPACELESS = {"zh": "zh", "ja": "ja-mecab"}  # languages without spaces, and sacreBLEU's tokenizers for them
CHUNK = "encoder-chunk-ms"
UNKNOWN_MS = 280  # stands for `encoder-chunk-ms=step` until the data is prepared, so that the plan can be checked
TABLES = ("train", "dev", "test")
MOST_ERRORS = 60.0  # character error rate, in per cent, up to which an encoder is worth starting from


class SpeechTranslation(Recipe):
    """MuST-C and CoVoST 2; languages that are written without spaces are scored in characters."""

    option_lists = {
        "asr": ("recognition pre-training", "--max-update 1000 --fp16"),
        "st": ("translation training", "--update-freq 4"),
        "eval": ("SimulEval", "--end-index 100"),
    }
    goal = "report.md, scores.json, curve.svg; details in RUN/SET/"

    def check_settings(self) -> None:
        if self.pair:
            of_speech(self.name, self.pair)

    def masks(self, attention: Attention) -> Mapping[str, str]:
        return super().masks(attention) if self.settings.offline else attention.wait_k_masks()

    def check_data(self) -> None:
        self.need_root(f"--root (the folder that holds {self.about.holds})")

    # ---------------------------------------------------------------------------------------------------------- names
    @property
    def recogniser(self) -> Path:
        return self.out / f"asr-{self.settings.attention.encoder.folder}{self._of_seed}"

    @property
    def run_folder(self) -> Path:
        offline = "-offline" if self.settings.offline else ""
        return self.out / f"{self.settings.attention.folder}{offline}{self._of_seed}"

    @property
    def _of_seed(self) -> str:
        return "" if self.settings.seed == 1 else f"-seed{self.settings.seed}"

    @property
    def plan(self) -> list[str]:
        """Options for attention and model, and for the source of the target length if a mechanism needs it."""
        s = self.settings
        words = [*s.attention.flags, *self.options("offline" if s.offline else "simul")]
        if s.attention.needs_length:
            words += self.options("length") if s.offline else ["--length-predictor", "oracle"]
        return words

    @property
    def pair(self) -> str:
        """The languages, as in "en-de"; "" for a data set of one pair."""
        return getattr(self.settings, "pair", "")

    @property
    def tokenizer(self) -> str:
        """sacreBLEU's tokenizer for a target language that is written without spaces; "" for any other."""
        _, _, target = self.pair.partition("-")
        return SPACELESS.get(target.partition("-")[0], "")

    @property
    def scoring(self) -> Sequence[object]:
        """More options of `leapformer score`."""
        return ["--tokenize", self.tokenizer, "--unit", "char"] if self.tokenizer else []

    # ---------------------------------------------------------------------------------------------------------- steps
    def prepare_options(self) -> list[object]:
        """Arguments of `leapformer prepare` for the location of the data."""
        return [self.settings.root, *(["--pair", self.pair] if self.pair else [])]

    def cells_prepare(self, state: State) -> list[Cell]:
        s = self.settings
        words = (*self.prepare_options(), "--out", self.data, "--vocab-size", s.vocab_size, "--workers", s.workers)
        title = f"preparing {self.name} in {self.data}"
        return [Cell("data", (ours("prepare", self.name, *words),), None, title=title)]

    def cells_train(self, state: State) -> list[Cell]:
        # Only the encoder is used later: its mechanism is that of the translation model, and plans with the same
        # encoder share the pre-training. The decoder is softmax, as in the released scripts.
        asr, run, s = self.recogniser, self.run_folder, self.settings
        plan = s.attention.recogniser.flags
        begin = ["--load-pretrained-encoder-from", str(asr / "model/checkpoint_best.pt")]
        more = ["--keep-last-epochs", "1", *self.options("asr")]
        first = self.train("asr", asr, [*plan, *self.options("asr")], *plan, *more)
        more = ["--keep-last-epochs", str(s.average), *begin, *self.options("st")]
        second = self.train("st", run, [*self.plan, *self.options("st")], *self.plan, *more)
        return [
            replace(first, title=f"pre-training the encoder on speech recognition in {asr}"),
            replace(second, needs=(*second.needs, first.name), title=f"training translation in {run}"),
        ]

    def train(self, task: str, folder: Path, record: Sequence[str], *words: str) -> Cell:
        words = (*words, *self.keep_batch(task, words))
        step = train_speech(self.data, task, folder / "model", *words, longer=f"--{task}-options")
        return Cell(
            folder.name, (step,), f"{folder.name}/model/done", needs=("data",),
            inputs=(self.data / "config_st.yaml",), records={folder.name: " ".join(record)},
        )  # fmt: skip

    def cells_evaluate(self, state: State) -> list[Cell]:
        run, s = self.run_folder, self.settings
        average, needs = self.average(run), [self.average(run).name]
        checkpoint = self.out / str(average.result)
        forced = self.force(checkpoint, run / "teacher-forced")
        title = "perplexity of the development set"
        cells = [average, Cell(f"{run.name}/teacher-forced", forced, needs=tuple(needs), title=title)]
        sets = [LONG] if s.longest else s.sets
        if s.attention.needs_length and not (s.offline or s.attention.guesses_length):
            title = f"{s.attention.text} knows no target length while translating, so there is no translation"
            cells.append(Cell(f"{run.name}/untranslated", (), None, needs=tuple(needs), title=title))
            sets = []
        if s.longest:
            cells.append(Cell("data/longest", (Call(write_longest, (self.data, s.longest)),), None, needs=("data",)))
            needs.append("data/longest")
        for name in sets:
            cells += [replace(cell, needs=tuple(needs)) for cell in self.translated(checkpoint, name)]
        report = ours("report", self.out)
        last = Cell(f"{run.name}/report", (report,), None, some_of=tuple(cell.name for cell in cells[1:]))
        return [*cells, last]

    def options(self, name: str) -> list[str]:
        more = ["--max-after-read", "10"] if name == "eval" and self.settings.longest else []
        if name == "eval" and self.tokenizer:
            more += ["--eval-latency-unit", "char", "--sacrebleu-tokenizer", self.tokenizer]
        seed = ["--seed", str(self.settings.seed)] if name in ("asr", "st") and self.settings.seed != 1 else []
        return [*super().options(name), *more, *seed]

    def translated(self, checkpoint: Path, name: str) -> list[Cell]:
        """Translate a test set with every k, unless --offline, and offline."""
        s, results = self.settings, self.run_folder / name
        place = str(results.relative_to(self.out))
        records = {place: " ".join(["--average", str(s.average), *self.options("eval")])}
        cells = []
        for k in [] if s.offline else s.k:
            out = results / f"k{k}"
            steps = simulate(self.data, name, checkpoint, k, out, *self.options("eval"), scoring=self.scoring)
            title = f"{name}: simultaneous translation with k = {k}"
            cells.append(Cell(f"{place}/k{k}", steps, records=records, title=title))
        out = results / "offline"
        steps = translate_offline(self.data, name, checkpoint, out, "--beam", 5, scoring=self.scoring)
        title = f"{name}: offline translation, beam 5"
        return [*cells, Cell(f"{place}/offline", steps, records=records, title=title)]

    def force(self, checkpoint: Path, out: Path) -> Steps:
        """Compute the perplexity of the development set's references, with teacher forcing."""
        words = ("--task", "speech_to_text", "--config-yaml", "config_st.yaml", "--valid-subset", "dev_st")
        return self.validate(self.data, checkpoint, out, self.data / "dev.target", *words, "--max-tokens", 20000)


class FittedSpeech(SpeechTranslation):
    """A few hours of speech; batch size, updates, pre-decision ratio and optionally chunks are derived from the data.

    With `encoder-chunk-ms=step`, a chunk of the encoder lasts as long as a step of wait-k.
    """

    def check_settings(self) -> None:
        super().check_settings()
        self._asked = self.settings.attention
        self._fit_chunks()

    def cells(self, state: State) -> list[Cell]:
        """Of trainings that follow from data that is not prepared, the options are not known yet."""
        self._fit_chunks()
        return super().cells(state)

    def _fit_chunks(self) -> None:
        """Replace `step` by its duration, which is known once the data is prepared."""
        asked: Attention = self._asked
        step = f"{CHUNK}={self.measured.step_ms if self._prepared else UNKNOWN_MS}"
        self.settings.attention = Attention(asked.text.replace(f"{CHUNK}=step", step))

    @property
    def _prepared(self) -> bool:
        return (self.data / "config_st.yaml").is_file()

    @cached_property
    def measured(self) -> tables.Measured:
        """Measurements of the data from which options for fairseq are derived."""
        from ...data import tables  # takes a second to import, and few commands need it

        return tables.measure(self.data)

    @property
    def scoring(self) -> Sequence[object]:
        # A model that has learned from a few hours may get its BLEU from frequent words alone: count rare ones, too.
        return ["--training-text", self.data / "train.target"]

    @property
    def fitted(self) -> dict[str, list[str]]:
        """Options for fairseq that are derived from the data, by list; none until it is prepared."""
        if not self._prepared:
            return {}
        data = self.measured
        sizes = {"max-tokens": data.batch, "max-update": data.updates, "warmup-updates": data.updates // 10}
        words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        return {"asr": words, "st": words, "simul": ["--fixed-pre-decision-ratio", str(data.ratio)]}

    def cells_train(self, state: State) -> list[Cell]:
        first, second = super().cells_train(state)
        heard = f"{first.name}/heard"
        steps = (Call(check_recognition, (self.recogniser / "model/train.log", self.settings.anyway)),)
        known = [f": {state.results[heard]}"] if state.results.get(heard) else []
        if self.dry and not self._prepared:
            missing = "--max-tokens, --max-update, --fixed-pre-decision-ratio"
            first = replace(first, title=f"{first.title}; not prepared yet: {missing} are left out")
        return [
            first,
            Cell(heard, steps, None, needs=(first.name,), title="what the recogniser has learned"),
            replace(second, needs=(*second.needs, heard), title="".join([second.title, *known])),
        ]

    def options(self, name: str) -> list[str]:
        return [*(self.fitted.get(name, []) if name in ("asr", "st", "simul") else []), *super().options(name)]


class OwnSpeech(FittedSpeech):
    """A user's own recordings, described by tables."""

    def check_data(self) -> None:
        for split in TABLES:
            if getattr(self.settings, split) is None:
                raise LeapformerError(f"no --{split} given, a table of recordings; see --help")

    def prepare_options(self) -> list[object]:
        s = self.settings
        words = [word for split in TABLES for word in (f"--{split}", getattr(s, split))]
        words += ["--audio-root", s.audio_root] if s.audio_root else []
        return words + (["--columns", *s.columns] if s.columns else [])


def check_recognition(log: Path, anyway: bool) -> str:
    """Raise LeapformerError, unless `anyway`, if the encoder is no better a start than a random one.

    Returns how well it recognises; "" if that is not known.
    """
    logged = (item for entry in entries(log) for item in entry.items())
    errors = [float(value) for name, value in logged if name.endswith("_char_error")]
    if not errors:
        return ""  # --asr-options has set another criterion
    wrong = f"at best, the recogniser gets {min(errors):.1f}% of the characters of dev wrong"
    if min(errors) <= MOST_ERRORS or anyway:
        return wrong
    raise LeapformerError(
        f"{wrong}: it has not learned to recognise, and translation would begin with noise; give more speech or "
        f'longer training in another --out (--asr-options "--max-update N"), or --anyway ({log})'
    )


def train_speech(data: Path, task: str, save: Path, *words: object, longer: str, threads: int | None = None) -> Command:
    """Train on the manifests of a task, asr or st; the rest as for `recipe.training`."""
    subsets = ("--train-subset", f"train_{task}", "--valid-subset", f"dev_{task}")
    return training(
        data, save, "--task", "speech_to_text", "--config-yaml", f"config_{task}.yaml", *subsets, "--report-accuracy",
        *words, longer=longer, threads=threads,
    )  # fmt: skip


def simulate(
    data: Path, name: str, checkpoint: Path, k: int, out: Path, *words: object, scoring: Sequence[object] = ()
) -> Steps:
    """Run SimulEval with the wait-k agent on a list of recordings, in one thread as it measures time, then score."""
    translate = logged(
        "--agent-class", "leapformer_fairseq.simul.LeapformerAgent", "--checkpoint", checkpoint, "--data-root", data,
        "--config-yaml", "config_st.yaml", "--waitk-lagging", k, "--source", data / f"{name}.source", "--target",
        data / f"{name}.target", "--output", out, "--source-segment-size", 40, "--quality-metrics", "BLEU",
        "--latency-metrics", "AL", "LAAL", "AP", "DAL", "ATD", *words, program="simuleval", threads=1,
    )  # fmt: skip
    return translate, ours("score", out, *scoring, "--json", out / "scores.json")


def translate_offline(
    data: Path,
    name: str,
    checkpoint: Path,
    out: Path,
    *words: object,
    scoring: Sequence[object] = (),
    threads: int | None = None,
) -> Steps:
    """Run fairseq-generate on whole recordings, then score."""
    translate = logged(
        "generate", data, "--task", "speech_to_text", "--config-yaml", "config_st.yaml", "--gen-subset", f"{name}_st",
        "--path", checkpoint, "--model-overrides", "{'waitk_lagging': 'offline'}", "--max-tokens", 20000, *LIMITS,
        "--results-path", out, *words, threads=threads,
    )  # fmt: skip
    translations, references = out / f"generate-{name}_st.txt", data / f"{name}.target"
    score = ours("score", translations, "--references", references, *scoring, "--json", out / "scores.json")
    return translate, score


def write_longest(data: Path, count: int) -> None:
    """Write the longest utterances of the development set, as lists for simulation and as a manifest."""
    from ...data.manifests import read_manifest, write_manifest  # imports sentencepiece, which no other step needs

    rows = list(read_manifest(data / "dev_st.tsv", "n_frames"))
    order = sorted(range(len(rows)), key=lambda i: -int(rows[i]["n_frames"]))[:count]
    for part in ("source", "target"):
        lines = list(read_lines(data / f"dev.{part}"))
        if len(lines) != len(rows):
            raise LeapformerError(
                f"{data / f'dev.{part}'} has {len(lines)} lines, dev_st.tsv {len(rows)} rows; prepare the data again"
            )
        write_lines(data / f"{LONG}.{part}", (lines[i] for i in order))
    write_manifest(data / f"{LONG}_st.tsv", (list(rows[i].values()) for i in order), list(rows[0]))
