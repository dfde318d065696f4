"""A folder made by `leapformer export`: graphs, the names and shapes of their states, and the vocabularies.

Files are data: nothing in the folder is executed or unpickled. `model.json` holds the size and the hash of every other
file, and the hash of its own content. Hashes reveal damage and files of other exports. A forged folder can have fitting
hashes, so the values are checked, too.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..support.errors import LeapformerError
from ..support.files import write_json
from .typed import dataclass_of, fits, shown

FORMATS = 5, 6, 7  # see `Folder.format`
HASH = "sha256"  # key in model.json: the hash of its other values
MODEL, WEIGHTS = "model.json", "weights.safetensors"
SUBWORDS, CODES = "subwords.model", "subwords.codes"  # of sentencepiece; of BPE, as subword-nmt has them
GPT2 = "encoder.json", "vocab.bpe"
SOURCE, LISTEN, WRITE, STEP = "source.onnx", "listen.onnx", "write.onnx", "step.onnx"
PROMPT, REFINE = "prompt.onnx", "refine.onnx"
TRANSLATION, SPEECH, LANGUAGE, SYNTHESIS = "translation", "speech", "language_modeling", "text_to_speech"
RECORDINGS = "speech_to_text"  # of whole recordings; SPEECH is read while it arrives
GRAPHS = {
    TRANSLATION: (SOURCE, STEP),
    SPEECH: (LISTEN, WRITE, STEP),
    LANGUAGE: (PROMPT, STEP),
    SYNTHESIS: (SOURCE, STEP, REFINE),
    RECORDINGS: (SOURCE, STEP),
}
# Of the engine CTranslate2; two equal vocabularies are one file, and so is that of a language model.
ONNX, CTRANSLATE2 = "onnx", "ctranslate2"
TASKS_OF = {ONNX: tuple(GRAPHS), CTRANSLATE2: (TRANSLATION, LANGUAGE)}
CTRANSLATE2_FILES = ("model.bin", "config.json")
CTRANSLATE2_WORDS = tuple(f"{of}vocabulary.json" for of in ("", "shared_", "source_", "target_"))
FILES = {  # of all exports
    *(MODEL, WEIGHTS, SUBWORDS, CODES, *GPT2, *CTRANSLATE2_FILES, *CTRANSLATE2_WORDS),
    *(name for names in GRAPHS.values() for name in names),
}
# Of inputs:
TOKENS, POSITIONS, ORDER, SPEAKERS = "tokens", "positions", "order", "speakers"
FRAMES, ROWS, BEFORE, COUNT, START, KEPT = "frames", "rows", "before", "count", "start", "kept"
USED, WIDTH, PATHS = "used", "width", "paths"  # of a step that shares memory, see `past.Past`
LOG_PROBS, ENDED, NEXT = "log_probs", "ended", ".next"  # of outputs
ATTENTION = "attention"  # an output: how much hypotheses attend to a source, (B, R, S), in one layer
SELF, CROSS, HEARD = "self", "cross", "heard"  # states of decoder self-attention, cross-attention, a streaming encoder
LENGTH = "cross.length"  # a state of cross-attention: the predicted length of the target in steps
KEYS, REAL = "source_keys", "real"  # of a layer's cross-attention: its keys, and 1 where they are no padding
Shapes = dict[str, list[int]]  # of states by name, without the dimension of hypotheses; a size of 0 grows with the text
SHARING = TRANSLATION, LANGUAGE, RECORDINGS  # tasks whose steps can share memory: each state is used once
# The kinds of attention with states, and the vocabularies, of each task.
SIDES = {**dict.fromkeys(GRAPHS, (SELF, CROSS)), SPEECH: (HEARD, SELF, CROSS)}
WORDS = {**dict.fromkeys(GRAPHS, ("target",)), TRANSLATION: ("source", "target"), SYNTHESIS: ("source",)}
# What the tokens are that a model of several languages reads and writes besides subwords.
OF_SOURCE, OF_TARGET, END = "source", "target", "end"
LARGEST, MOST = 2**28, 2**20  # most numbers in a state (1 GiB), and the largest size that a model may claim


@dataclass(frozen=True)
class Vocabulary:
    """The symbols of one side, in the order of their ids."""

    symbols: list[str]
    pad: int
    eos: int
    unk: int

    @cached_property
    def _known(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    def number(self, piece: str) -> int:
        return self._known.get(piece, self.unk)

    def numbers(self, pieces: list[str]) -> list[int]:
        """The ids of subwords, and that of the end."""
        return [*map(self.number, pieces), self.eos]

    def words(self, numbers: list[int]) -> list[str]:
        """The subwords of ids, without the end."""
        return [self.symbols[number] for number in numbers if number != self.eos]


@dataclass(frozen=True)
class Speech:
    """Properties of a model for simultaneous translation.

    state_frames: fbank frames (10 ms) of an encoder state, which the graphs call a row.
    chunk_states: states that become final together, once `ahead_states` more were heard.
    step_frames:  frames of a pre-decision step, whose states cross-attention reads together.
    n_bins:       numbers of a frame.
    lagging:      k of wait-k; None: it was not trained with one.
    forbidden:    ids that are never written.
    mean, std:    of frames, (n_bins,); None: they are not normalised.
    """

    state_frames: int
    chunk_states: int
    ahead_states: int
    step_frames: int
    n_bins: int
    lagging: int | None = None
    forbidden: list[int] = field(default_factory=list)
    mean: list[float] | None = None
    std: list[float] | None = None


@dataclass(frozen=True)
class Recordings:
    """Properties of a model that reads whole recordings.

    n_bins:      numbers of a frame, an fbank of 10 ms.
    mean, std:   of the frames of a data set, (n_bins,); None: frames are not normalised by them.
    own_mean, own_std: whether frames are normalised by the mean and the standard deviation of their own recording.
    """

    n_bins: int
    mean: list[float] | None = None
    std: list[float] | None = None
    own_mean: bool = False
    own_std: bool = False


@dataclass(frozen=True)
class Speaking:
    """Properties of a model for text to speech.

    per_step:  log-mel frames of a decoder step.
    values:    numbers of a step, that is of all its frames.
    layers:    of the pre-net, `units` each, which are dropped at random with probability `dropout`.
    data:      the configuration of its data: `features`, and perhaps what espeak-ng is told.
    mean, std: of frames; None: they are not normalised.
    speakers:  their numbers by name; None: there is one.
    """

    per_step: int
    values: int
    layers: int
    units: int
    dropout: float
    data: dict[str, Any]
    mean: list[float] | None = None
    std: list[float] | None = None
    speakers: dict[str, int] | None = None


@dataclass(frozen=True)
class Language:
    """Properties of a language model.

    first:   id of the symbol before the first token.
    longest: most tokens that attention supports; None: any number.
    segment: tokens of a block of text in training.
    """

    first: int
    longest: int | None
    segment: int


@dataclass(frozen=True)
class Multilingual:
    """How a translation model is told the languages of a source and of its target.

    tokens:         the symbol of each language, which both vocabularies have.
    before, after:  what it reads around the subwords of a source, each `OF_SOURCE`, `OF_TARGET` or `END`.
    first:          what precedes a target, one of the same.
    begin:          with what a target begins, each one of the same.
    source, target: the languages of a text of which nothing is said; None: it must be said.
    """

    tokens: dict[str, str]
    before: list[str]
    after: list[str]
    first: str
    begin: list[str]
    source: str | None = None
    target: str | None = None


# What only models of some tasks have, by its name in `Folder` and in model.json.
PARTS: dict[str, Any] = {"speech": Speech, "recordings": Recordings, "speaking": Speaking, "language": Language}
PART_OF = {SPEECH: "speech", RECORDINGS: "recordings", SYNTHESIS: "speaking", LANGUAGE: "language"}


@dataclass(frozen=True)
class Content:
    """The size of a file in bytes, and its SHA-256."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Content:
        with path.open("rb") as file:
            return cls(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class Folder:
    """The content of `model.json`.

    states: shapes by name, for each kind of attention.
    starts: initial values of states that do not start with zeros.
    origin: the checkpoint, as described by `checkpoints.describe_checkpoint`.
    max_source: most tokens of a source of text, or frames of a recording; None: any number.
    moses: languages of source and target, whose text is split into words as by Moses; None: it is not.
    alignments: the decoder layer whose attention weights the steps return, from 1; None: they return none.
    multilingual: of a model of several languages, which it is told.
    engine: what runs it: `ONNX`, or `CTRANSLATE2`, which has its own states.
    shared: names of those states of self-attention that stay in memory which steps share (`past.Past`).
    files:  the other files by name; empty if unknown, as in a folder that is being written.
    """

    path: Path
    task: str
    states: dict[str, Shapes]
    vocabularies: dict[str, Vocabulary]
    max_target: int
    signature: str
    origin: dict[str, Any]
    speech: Speech | None = None
    recordings: Recordings | None = None
    speaking: Speaking | None = None
    language: Language | None = None
    max_source: int | None = None
    moses: list[str] | None = None
    alignments: int | None = None
    multilingual: Multilingual | None = None
    engine: str = ONNX
    shared: list[str] = field(default_factory=list)
    starts: dict[str, list[Any]] = field(default_factory=dict)
    files: dict[str, Content] = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, path: str | Path) -> Folder:
        """Read a folder and check that its files exist with the right sizes; hashes are checked when a file is opened.

        Raises LeapformerError for a folder that is not an export, is of another version, or is damaged.
        """
        path = Path(path)
        if not (path / MODEL).is_file():
            raise LeapformerError(f"{path} has no {MODEL}; give a folder made by `leapformer export`")
        try:
            _stays(path, MODEL)
            about = json.loads((path / MODEL).read_text(encoding="utf-8"))
            if not isinstance(about, dict):
                raise ValueError(f"{shown(about)} is no JSON object")
            if (version := about.get("format")) not in FORMATS:
                later = isinstance(version, int) and version > FORMATS[-1]
                remedy = "update leapformer-fairseq, which is older than the folder" if later else "export it again"
                known = f"{FORMATS[0]} to {FORMATS[-1]}"
                raise LeapformerError(f"{path / MODEL} has format {shown(version)}, not {known}; {remedy}")
            if about.pop(HASH, None) != _hash(about):
                raise ValueError("its content is not that of its hash")
            folder = _folder(path, about)
            if folder.format != version:
                raise ValueError(f"format {version} does not fit what it holds")
        except LeapformerError:  # which is a ValueError
            raise
        except OSError as error:
            raise LeapformerError(f"{path / MODEL} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            reason = "too many brackets" if isinstance(error, RecursionError) else error
            raise LeapformerError(f"{path / MODEL} is damaged ({reason}); export the model again") from error
        for name in {**dict.fromkeys(_names(path, folder.task, folder.engine)), **folder.files}:
            if not (path / name).is_file():
                raise LeapformerError(f"{path} has no {name}; export the model again")
            if name not in folder.files:
                raise LeapformerError(f"{path / name} is not of this export; delete it, or export the model again")
            _stays(path, name)
            if (path / name).stat().st_size != folder.files[name].size:
                raise LeapformerError(_damage(path / name))
        return folder

    @property
    def format(self) -> int:
        """The first of `FORMATS` whose versions can run it.

        7: with shared memory. 6: states grow, or it has a later task or engine, or several languages. States grow
        wherever there are alignments.
        """
        if self.shared:
            return 7
        grows = any(0 in shape for states in self.states.values() for shape in states.values())
        later = grows or self.task == RECORDINGS or self.multilingual is not None or self.engine != ONNX
        return 6 if later else 5

    @property
    def layers(self) -> int:
        """The number of decoder layers, as its states tell."""
        return len({name.split(".")[1] for name in self.states[CROSS] if name != LENGTH})

    def align_layer(self, layer: int | None = None) -> int:
        """The decoder layer whose attention weights are there, from 1.

        `layer`: the one that is wanted; None: any. Raises LeapformerError if they are not there.
        """
        engine = "" if self.engine == ONNX else f"--engine {ONNX} "
        remedy = f"export it with {engine}--alignments{'' if layer is None else f' {layer}'}"
        if self.task == LANGUAGE:
            raise LeapformerError(f"{self.path} is a language model, which has no source to attend to")
        if self.alignments is None:
            raise LeapformerError(f"{self.path} was exported without attention weights; {remedy}")
        if layer not in (None, self.alignments):
            raise LeapformerError(
                f"{self.path} was exported with the attention weights of layer {self.alignments}, not of {layer}; give "
                f"--align-layer {self.alignments}, or {remedy}"
            )
        return self.alignments

    def file(self, name: str) -> Path:
        """The path of a file that is opened next. Raises LeapformerError if its content does not fit its hash."""
        path = self.path / name
        try:
            if self.files and self.files.get(name) != Content.of(path):
                raise LeapformerError(_damage(path))
        except OSError as error:
            raise LeapformerError(f"{path} cannot be read: {error.strerror}; export the model again") from error
        return path

    def write(self) -> Folder:
        """Write `model.json` after all other files, and return the folder with their hashes."""
        files = {name: Content.of(self.path / name) for name in _names(self.path, self.task, self.engine)}
        about = {
            "format": self.format,
            "task": self.task,
            "states": self.states,
            "starts": self.starts,
            "vocabularies": {side: asdict(item) for side, item in self.vocabularies.items()},
            "max_target": int(self.max_target),  # fairseq has a default of 1e6
            **({} if self.max_source is None else {"max_source": self.max_source}),
            **({} if self.moses is None else {"moses": self.moses}),
            **({} if self.alignments is None else {"alignments": self.alignments}),
            **({} if self.multilingual is None else {"multilingual": asdict(self.multilingual)}),
            **({} if self.engine == ONNX else {"engine": self.engine}),
            **({"shared": self.shared} if self.shared else {}),
            "signature": self.signature,
            "checkpoint": self.origin,
            **{name: asdict(getattr(self, name)) for name in PARTS if getattr(self, name) is not None},
            "files": {name: asdict(item) for name, item in files.items()},
        }
        write_json(self.path / MODEL, {**about, HASH: _hash(about)})
        return replace(self, files=files)


def _names(path: Path, task: str, engine: str) -> list[str]:
    """The files of a folder besides `model.json`."""
    needed, optional = _files(task, engine)
    return [*needed, *(name for name in optional if os.path.lexists(path / name))]


def _files(task: str, engine: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that a folder must have, and those that it may have."""
    if engine == CTRANSLATE2:
        return CTRANSLATE2_FILES, (*CTRANSLATE2_WORDS, SUBWORDS, CODES, *GPT2)
    return (*GRAPHS[task], WEIGHTS), (SUBWORDS, CODES, *GPT2)


def _damage(path: Path) -> str:
    return f"{path} is damaged, or of another export; export the model again"


def _stays(path: Path, name: str) -> None:
    """Raises LeapformerError for a link that leads out of the folder."""
    if not (path / name).resolve().is_relative_to(path.resolve()):
        raise LeapformerError(f"{path / name} is a link that leads out of the folder; copy the file in its place")


def _hash(about: Mapping[str, Any]) -> str:
    """The hash of the values in model.json, whatever its formatting."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


# ----------------------------------------------------------------------------------------------- what a file may say
def _folder(path: Path, about: dict[str, Any]) -> Folder:
    """The folder that model.json describes. Raises ValueError for values that no export writes."""
    given = {"origin" if name == "checkpoint" else name: value for name, value in about.items() if name != "format"}
    if ours := {"path", "origin"} & about.keys():
        raise ValueError(f"{min(ours)} is not known")
    if without := {"starts", "files", "checkpoint"} - about.keys():
        raise ValueError(f"{min(without)} is missing")
    folder: Folder = dataclass_of(Folder, {**given, "path": path}, "")
    if wrong := next(_wrong(folder), None):
        raise ValueError(wrong)
    return folder


def _wrong(folder: Folder) -> Iterator[str]:
    """Messages about values that are out of range or contradict each other."""
    task, target = folder.task, folder.vocabularies.get("target")
    if task not in GRAPHS:
        yield f"task is {shown(task)}"
        return
    if task not in TASKS_OF.get(folder.engine, ()):
        yield f"engine is {shown(folder.engine)}"
        return
    yield from _differ("states", folder.states, SIDES[task] if folder.engine == ONNX else ())
    yield from _differ("vocabularies", folder.vocabularies, WORDS[task])
    yield from _differ("parts", [name for name in PARTS if getattr(folder, name) is not None], [*_part(task)])
    needed, optional = _files(task, folder.engine)
    here = [name for name in optional if name in folder.files or (name, task) == (SUBWORDS, SPEECH)]
    yield from _differ("files", folder.files, [*needed, *here])
    half = [name for name in GPT2 if name in folder.files]
    yield from _unless(len(half) != 1, f"one of {' and '.join(GPT2)}", half)
    for name, content in folder.files.items():
        yield from _unless(content.size >= 0, f"files.{name}.size", content.size)
    for side, words in folder.vocabularies.items():
        for name in ("pad", "eos", "unk"):
            number = getattr(words, name)
            yield from _unless(0 <= number < len(words.symbols), f"vocabularies.{side}.{name}", number)
        broken = next((symbol for symbol in words.symbols if "\n" in symbol), None)
        yield from _unless(broken is None, f"a symbol of vocabularies.{side}", broken)
    yield from _unless(folder.max_target >= 1, "max_target", folder.max_target)
    moses = folder.moses
    yield from _unless(moses is None or (len(moses) == 2 and all(moses)), "moses", moses)
    yield from _unless(folder.max_source is None or folder.max_source >= 1, "max_source", folder.max_source)
    if (layer := folder.alignments) is not None:
        known = folder.states.get(CROSS, {}).get(f"{CROSS}.{layer - 1}.{REAL}") == [0] and task in (TRANSLATION, SPEECH)
        yield from _unless(known, "alignments", layer)
    for side, states in folder.states.items():
        yield from _unless(bool(states) or (side, task) == (CROSS, LANGUAGE), f"states.{side}", states)
    shapes = {name: shape for side in folder.states.values() for name, shape in side.items()}
    for name, shape in shapes.items():
        size = math.prod(size or 1 for size in shape) if len(shape) < 8 else LARGEST + 1
        yield from _unless(min(shape, default=1) >= 0 and size <= LARGEST, f"the shape of {name}", shape)
    for name in folder.shared:
        grows = [bool(size) for size in folder.states.get(SELF, {}).get(name, [])] == [True, False, True]
        yield from _unless(grows and task in SHARING, f"shared: {shown(name)}", task)
    for name, start in folder.starts.items():
        yield from _unless(name in shapes and _has_shape(start, shapes[name]), f"starts.{name}", start)
    if folder.speech is not None and target is not None:
        yield from _wrong_speech(folder.speech, len(target.symbols))
    if folder.recordings is not None:
        recordings = folder.recordings
        yield from _unless(1 <= recordings.n_bins <= MOST, "recordings.n_bins", recordings.n_bins)
        yield from _wrong_normal("recordings", recordings.mean, recordings.std, recordings.n_bins)
    if folder.speaking is not None:
        yield from _wrong_speaking(folder.speaking)
    if folder.multilingual is not None:
        yield from _unless((task, folder.engine) == (TRANSLATION, ONNX), "multilingual", folder.multilingual)
        yield from _wrong_multilingual(folder.multilingual, folder.vocabularies.values())
    if folder.language is not None and target is not None:
        language, longest = folder.language, folder.language.longest
        yield from _unless(0 <= language.first < len(target.symbols), "language.first", language.first)
        yield from _unless(longest is None or longest >= 1, "language.longest", longest)
        yield from _unless(language.segment >= 1, "language.segment", language.segment)


def _part(task: str) -> Iterator[str]:
    if task in PART_OF:
        yield PART_OF[task]


def _wrong_multilingual(model: Multilingual, vocabularies: Iterable[Vocabulary]) -> Iterator[str]:
    for language, symbol in model.tokens.items():
        known = all(words.number(symbol) != words.unk for words in vocabularies)
        yield from _unless(known, f"multilingual.tokens.{shown(language)}", symbol)
    for role in (*model.before, *model.after, model.first, *model.begin):
        yield from _unless(role in (OF_SOURCE, OF_TARGET, END), "a token of multilingual", role)
    for side in ("source", "target"):
        language = getattr(model, side)
        yield from _unless(language is None or language in model.tokens, f"multilingual.{side}", language)


def _wrong_speech(speech: Speech, words: int) -> Iterator[str]:
    for name in ("state_frames", "chunk_states", "n_bins"):
        yield from _unless(1 <= getattr(speech, name) <= MOST, f"speech.{name}", getattr(speech, name))
    yield from _unless(0 <= speech.ahead_states <= MOST, "speech.ahead_states", speech.ahead_states)
    yield from _unless(speech.state_frames <= speech.step_frames <= MOST, "speech.step_frames", speech.step_frames)
    yield from _unless(speech.lagging is None or speech.lagging >= 1, "speech.lagging", speech.lagging)
    yield from _unless(all(0 <= number < words for number in speech.forbidden), "speech.forbidden", speech.forbidden)
    yield from _wrong_normal("speech", speech.mean, speech.std, speech.n_bins)


def _wrong_speaking(speaking: Speaking) -> Iterator[str]:
    for name in ("per_step", "values", "layers", "units"):
        yield from _unless(1 <= getattr(speaking, name) <= MOST, f"speaking.{name}", getattr(speaking, name))
    yield from _unless(speaking.values % max(speaking.per_step, 1) == 0, "speaking.values", speaking.values)
    yield from _unless(0 <= speaking.dropout < 1, "speaking.dropout", speaking.dropout)
    if speaking.speakers is not None:
        yield from _unless(
            all(0 <= number <= MOST for number in speaking.speakers.values()), "speaking.speakers", "..."
        )
        yield from _unless(len(speaking.speakers) >= 1, "speaking.speakers", {})
    yield from _wrong_normal("speaking", speaking.mean, speaking.std, speaking.values // max(speaking.per_step, 1))


def _wrong_normal(part: str, mean: list[float] | None, std: list[float] | None, bins: int) -> Iterator[str]:
    """Both must be given for every bin, or neither."""
    yield from _unless((mean is None) == (std is None), f"one of {part}.mean and {part}.std", None)
    for name, values in (("mean", mean), ("std", std)):
        if values is not None:
            yield from _unless(len(values) == bins, f"the length of {part}.{name}", len(values))
    yield from _unless(std is None or min(std, default=0) >= 0, f"the least of {part}.std", std and min(std))


def _unless(good: bool, name: str, value: Any) -> Iterator[str]:
    if not good:
        yield f"{name} is {shown(value)}"


def _differ(name: str, names: Any, wanted: Any) -> Iterator[str]:
    if set(names) != set(wanted):
        yield f"{name} are {shown(sorted(names))}, not {sorted(wanted)}"


def _has_shape(values: Any, shape: list[int]) -> bool:
    """Whether nested lists hold finite numbers and have this shape."""
    if not shape:
        return fits(values, float)
    return (
        isinstance(values, list) and len(values) == shape[0] and all(_has_shape(value, shape[1:]) for value in values)
    )
