"""Speech translation: pre-trains the encoder on recognition, trains, and translates simultaneously or offline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...support.errors import LeapformerError
from ...support.lines import read_lines, write_lines
from ..trainings import Work, entries
from .options import Parser, list_of, one_of, whole
from .plans import Attention
from .recipe import ATTENTION, LIMITS, DataSet, Recipe, add_root
from .shell import Shell

if TYPE_CHECKING:
    from ...attention import Mask
    from ...data import tables

LONG = "dev-long"
CHUNK = "encoder-chunk-ms"
UNKNOWN_MS = 280  # stands for `encoder-chunk-ms=step` until the data is prepared, so that the plan can be checked
TABLES = ("train", "dev", "test")
MOST_ERRORS = 60.0  # character error rate, in per cent, up to which an encoder is worth starting from


class SpeechTranslation(Recipe):
    """MuST-C and CoVoST 2."""

    option_lists = {
        "asr": ("recognition pre-training", "--max-update 1000 --fp16"),
        "st": ("translation training", "--update-freq 4"),
        "eval": ("SimulEval", "--end-index 100"),
    }

    @classmethod
    def add_data_options(cls, parser: Parser, about: DataSet) -> None:
        add_root(parser, about.holds)

    @classmethod
    def add_options(cls, parser: Parser, about: DataSet) -> None:
        cls.add_data_options(parser, about)
        parser.option("--attention", "PLAN", ATTENTION, Attention, default="leap")
        parser.option("--k", "LIST", "k of wait-k to evaluate, in quotes", list_of(whole()))
        parser.option(
            "--sets", "LIST", f"test sets to evaluate, in quotes, of {', '.join(about.sets)}",
            list_of(one_of(*about.sets)), default=about.sets[0],
        )  # fmt: skip
        parser.option(
            "--longest", "N", "translate instead the N longest utterances of the development set, with at most 10 "
            "tokens after their end, as for table 10 of the LeaPformer paper, which does not say how many it took",
            whole(),
        )  # fmt: skip
        parser.option("--seed", "N", "of both trainings", whole(), default=1)
        parser.option("--vocab-size", "N", "subwords per language", whole())
        parser.option("--workers", "N", "processes that prepare the data", whole(), default=1)
        parser.option("--average", "N", "translate with the average of the last N epochs", whole())
        parser.flag(
            "--offline", "translate whole recordings instead of simultaneous translation; cosformer in a decoder block "
            'then predicts the target length (--st-options "--length-predictor ..." for another predictor)',
        )  # fmt: skip

    def masks(self, attention: Attention) -> Mapping[str, Mask]:
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
    def scoring(self) -> Sequence[object]:
        """More options of `leapformer score`."""
        return []

    # ---------------------------------------------------------------------------------------------------------- steps
    def prepare_options(self) -> list[object]:
        """Arguments of `leapformer prepare` for the location of the data."""
        return [self.settings.root]

    def step_prepare(self) -> None:
        s = self.settings
        self.shell.say(f"preparing {self.name} in {self.data}")
        sizes = ["--vocab-size", s.vocab_size, "--workers", s.workers]
        self.shell.run(self.shell.leapformer("prepare", self.name, *self.prepare_options(), "--out", self.data, *sizes))

    def step_train(self) -> None:
        if not ((self.data / "config_st.yaml").is_file() or self.shell.dry):
            raise LeapformerError(f"{self.data} holds no prepared data; run the step prepare first")
        # Only the encoder is used later: its mechanism is that of the translation model, and plans with the same
        # encoder share the pre-training. The decoder is softmax, as in the released scripts.
        asr, run, s = self.recogniser, self.run_folder, self.settings
        plan = s.attention.recogniser.flags
        self.shell.say(f"pre-training the encoder on speech recognition in {asr}")
        with self.shell.folder(asr, [*plan, *self.options("asr")]):
            self.shell.run(self.train("asr", asr, *plan, "--keep-last-epochs", "1", *self.options("asr")))
        self.shell.say(f"training translation in {run}")
        with self.shell.folder(run, [*self.plan, *self.options("st")]):
            self.shell.run(
                self.train(
                    "st", run, *self.plan, "--keep-last-epochs", str(s.average), "--load-pretrained-encoder-from",
                    str(asr / "model/checkpoint_best.pt"), *self.options("st"),
                )
            )  # fmt: skip

    def train(self, task: str, folder: Path, *words: str) -> Work:
        more = f"--{task}-options"
        training = train_speech(self.shell, folder.name, self.data, task, folder / "model", *words, more=more)
        yield from self.shell.once(folder / "model", training)

    def step_evaluate(self) -> None:
        run, s = self.run_folder, self.settings
        self.shell.need(run / "model", "train")
        checkpoint = run / f"model/average{s.average}.pt"
        if s.longest and not self.shell.dry:
            write_longest(self.data, s.longest)
        self.shell.run(self.average(run / "model", checkpoint))
        self.shell.say("perplexity of the development set")
        forced = run / "teacher-forced"
        self.shell.run(self.shell.once(forced, self.force(checkpoint, forced)))
        sets = [LONG] if s.longest else s.sets
        if s.attention.needs_length and not (s.offline or s.attention.guesses_length):
            self.shell.say(f"{s.attention.text} knows no target length while translating, so there is no translation")
            sets = []
        for name in sets:
            self.translate(checkpoint, name)
        self.shell.say("report")
        self.shell.run(self.shell.leapformer("report", self.out))
        self.shell.say(f"done: {self.out}/report.md, scores.json, curve.svg; details in {run}/SET/")

    def options(self, name: str) -> list[str]:
        more = ["--max-after-read", "10"] if name == "eval" and self.settings.longest else []
        seed = ["--seed", str(self.settings.seed)] if name in ("asr", "st") and self.settings.seed != 1 else []
        return [*super().options(name), *more, *seed]

    def translate(self, checkpoint: Path, name: str) -> None:
        """Translate a test set with every k, unless --offline, and offline."""
        s, results = self.settings, self.run_folder / name
        with self.shell.folder(results, ["--average", str(s.average), *self.options("eval")]):
            for k in [] if s.offline else s.k:
                out = results / f"k{k}"
                self.shell.say(f"{name}: simultaneous translation with k = {k}")
                work = simulate(
                    self.shell, self.data, name, checkpoint, k, out, *self.options("eval"), scoring=self.scoring
                )
                self.shell.run(self.shell.once(out, work))
            self.shell.say(f"{name}: offline translation, beam 5")
            whole_sources = translate_offline(
                self.shell, self.data, name, checkpoint, results / "offline", "--beam", 5, scoring=self.scoring
            )
            self.shell.run(self.shell.once(results / "offline", whole_sources))

    def force(self, checkpoint: Path, out: Path) -> Work:
        """Compute the perplexity of the development set's references, with teacher forcing."""
        words = ("--task", "speech_to_text", "--config-yaml", "config_st.yaml", "--valid-subset", "dev_st")
        yield from self.validate(self.data, checkpoint, out, self.data / "dev.target", *words, "--max-tokens", 20000)


class FittedSpeech(SpeechTranslation):
    """A few hours of speech; batch size, updates, pre-decision ratio and optionally chunks are derived from the data.

    With `encoder-chunk-ms=step`, a chunk of the encoder lasts as long as a step of wait-k.
    """

    def check(self) -> None:
        self._asked = self.settings.attention
        self._fit_chunks()

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

    def run(self, steps: Iterable[str]) -> None:
        for step in steps:
            super().run([step])
            self._fit_chunks()

    @property
    def scoring(self) -> Sequence[object]:
        # A model that has learned from a few hours may get its BLEU from frequent words alone: count rare ones, too.
        return ["--training-text", self.data / "train.target"]

    @cached_property
    def fitted(self) -> dict[str, list[str]]:
        """Options for fairseq that are derived from the data, by list."""
        if self.shell.dry and not self._prepared:
            self.shell.say("not prepared yet: --max-tokens, --max-update, --fixed-pre-decision-ratio are left out")
            return {}
        data = self.measured
        sizes = {"max-tokens": data.batch, "max-update": data.updates, "warmup-updates": data.updates // 10}
        words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        return {"asr": words, "st": words, "simul": ["--fixed-pre-decision-ratio", str(data.ratio)]}

    @classmethod
    def add_options(cls, parser: Parser, about: DataSet) -> None:
        super().add_options(parser, about)
        parser.flag(
            "--anyway", f"train translation even if the recogniser gets more than {MOST_ERRORS:.0f} %% of the "
            "characters of the development set wrong",
        )  # fmt: skip

    def train(self, task: str, folder: Path, *words: str) -> Work:
        yield from super().train(task, folder, *words)
        if task == "asr" and not self.shell.dry:
            self._need_recognition(folder / "model/train.log")

    def _need_recognition(self, log: Path) -> None:
        """Raise LeapformerError, unless `--anyway`, if the encoder is no better a start than a random one."""
        logged = (item for entry in entries(log) for item in entry.items())
        errors = [float(value) for name, value in logged if name.endswith("_char_error")]
        if not errors:
            return  # --asr-options has set another criterion
        wrong = f"at best, the recogniser gets {min(errors):.1f}% of the characters of dev wrong"
        if min(errors) <= MOST_ERRORS or self.settings.anyway:
            self.shell.say(wrong)
            return
        raise LeapformerError(
            f"{wrong}: it has not learned to recognise, and translation would begin with noise; give more speech or "
            f'longer training in another --out (--asr-options "--max-update N"), or --anyway ({log})'
        )

    def options(self, name: str) -> list[str]:
        return [*(self.fitted.get(name, []) if name in ("asr", "st", "simul") else []), *super().options(name)]


class OwnSpeech(FittedSpeech):
    """A user's own recordings, described by tables."""

    @classmethod
    def add_data_options(cls, parser: Parser, about: DataSet) -> None:
        for split, what in (("train", "to train on"), ("dev", "to validate"), ("test", "to evaluate")):
            parser.option(f"--{split}", "TABLE", f"the recordings {what}, {about.holds} (only to prepare)", Path)
        parser.option("--columns", "LIST", 'other names, in quotes: "audio=path text=sentence"', list_of(), default=[])
        parser.option("--audio-root", "DIR", "paths of audio begin here, instead of beside the table", Path)

    def check_data(self) -> None:
        for split in TABLES:
            if getattr(self.settings, split) is None:
                raise LeapformerError(f"no --{split} given, a table of recordings; see --help")

    def prepare_options(self) -> list[object]:
        s = self.settings
        words = [word for split in TABLES for word in (f"--{split}", getattr(s, split))]
        words += ["--audio-root", s.audio_root] if s.audio_root else []
        return words + (["--columns", *s.columns] if s.columns else [])


def train_speech(shell: Shell, name: str, data: Path, task: str, save: Path, *words: str, more: str = "") -> Work:
    """Train on the manifests of a task, asr or st; `more` as for `Shell.train`."""
    subsets = ("--train-subset", f"train_{task}", "--valid-subset", f"dev_{task}")
    yield from shell.train(
        name, data, save, "--task", "speech_to_text", "--config-yaml", f"config_{task}.yaml", *subsets,
        "--report-accuracy", *words, more=more,
    )  # fmt: skip


def simulate(
    shell: Shell,
    data: Path,
    name: str,
    checkpoint: Path,
    k: int,
    out: Path,
    *words: object,
    scoring: Sequence[object] = (),
) -> Work:
    """Run SimulEval with the wait-k agent on a list of recordings, in one thread as it measures time, then score."""
    yield from shell.logged(
        out / "log", "--agent-class", "leapformer_fairseq.simul.LeapformerAgent", "--checkpoint", checkpoint,
        "--data-root", data, "--config-yaml", "config_st.yaml", "--waitk-lagging", k, "--source",
        data / f"{name}.source", "--target", data / f"{name}.target", "--output", out, "--source-segment-size", 40,
        "--quality-metrics", "BLEU", "--latency-metrics", "AL", "LAAL", "AP", "DAL", "ATD", *words,
        program="simuleval", threads=1,
    )  # fmt: skip
    yield from shell.leapformer("score", out, *scoring, "--json", out / "scores.json")


def translate_offline(
    shell: Shell, data: Path, name: str, checkpoint: Path, out: Path, *words: object, scoring: Sequence[object] = ()
) -> Work:
    """Run fairseq-generate on whole recordings, then score."""
    yield from shell.logged(
        out / "log", "generate", data, "--task", "speech_to_text", "--config-yaml", "config_st.yaml", "--gen-subset",
        f"{name}_st", "--path", checkpoint, "--model-overrides", "{'waitk_lagging': 'offline'}", "--max-tokens", 20000,
        *LIMITS, "--results-path", out, *words,
    )  # fmt: skip
    yield from shell.leapformer(
        "score", out / f"generate-{name}_st.txt", "--references", data / f"{name}.target", *scoring, "--json",
        out / "scores.json",
    )  # fmt: skip


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
