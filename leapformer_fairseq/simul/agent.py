"""The interface to SimulEval: arguments, states and actions. All decisions are made in `stream`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from simuleval.agents import AgentStates, SpeechToTextAgent
from simuleval.agents.actions import Action, ReadAction, WriteAction
from simuleval.data.segments import EmptySegment, Segment, SpeechSegment

from ..models.loading import available_device
from ..runtime.audio import check_samples, check_speech
from ..runtime.formats.runlog import COMPUTE_LOG
from ..runtime.simul.options import add_system_options, decoding_options
from ..runtime.simul.stream import TranslationStream
from ..support.errors import LeapformerError
from . import dataloader  # noqa: F401  (SimulEval then loads speech with it)
from .live import open_system


class StreamStates(AgentStates):
    """The state of one utterance, held in one TranslationStream; `source` stays empty on purpose.

    SimulEval's own update_source keeps every sample of the utterance in a Python list.
    """

    def __init__(self, new_stream: Callable[[], TranslationStream]) -> None:
        self._new_stream = new_stream
        super().__init__()

    def reset(self) -> None:
        """Forget the utterance."""
        super().reset()
        self.stream = self._new_stream()

    def update_source(self, segment: Segment) -> None:
        """Add a segment. Raises LeapformerError unless it is 16 kHz mono speech in [-1, 1]."""
        self.source_finished = segment.finished
        if isinstance(segment, EmptySegment) or segment.is_empty:
            return
        samples = read_samples(segment)
        self.source_sample_rate, self.tgt_lang = segment.sample_rate, segment.tgt_lang
        self.stream.push(samples)


def read_samples(segment: Segment) -> np.ndarray:
    """The checked samples of a speech segment, (T,) float32 in [-1, 1]. Raises LeapformerError."""
    if not isinstance(segment, SpeechSegment):
        raise LeapformerError(f"the agent translates speech, got a {type(segment).__name__}; use a speech source")
    samples = np.asarray(segment.content, dtype=np.float32)
    check_speech(1 if samples.ndim == 1 else samples.shape[-1], segment.sample_rate, "the source")
    check_samples(samples, "the source")
    return samples


class LeapformerAgent(SpeechToTextAgent):
    """Wait-k speech translation for SimulEval 1.1.4 with a `leapformer_simulst*` or `leapformer_s2t*` checkpoint.

    `--agent-class leapformer_fairseq.simul.LeapformerAgent`. Stateless: everything that belongs to an utterance is in
    its StreamStates, so one agent serves many at once. Each call writes all words that have become final, at the end of
    the source also the rest (SimulEval makes only one call after it), and only then reports that it has finished.
    """

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Add the agent's options to SimulEval's."""
        add_system_options(parser)

    def __init__(self, args: Namespace) -> None:
        """Load the model and run it once, so that no utterance pays for the start. Raises LeapformerError."""
        self._options = decoding_options(args)
        self._system = open_system(args)
        self._compute_log, self._threads = _new_compute_log(args), args.num_threads
        self._warm_up()
        super().__init__(args)

    def build_states(self) -> StreamStates:
        """States for one more concurrent utterance."""
        return StreamStates(lambda: TranslationStream(self._system, self._options))

    def policy(self, states: StreamStates | None = None) -> Action:
        """Read, or write what has become final; exactly one write per utterance is marked `finished`."""
        states = self.states if states is None else states
        finished = states.stream.advance(states.source_finished)
        text = states.stream.flush(final=finished)
        if finished:
            self._log_compute(states.stream)
        return WriteAction(text, finished=finished) if text or finished else ReadAction()

    def to(self, device: str, *args: object, fp16: bool = False, **kwargs: object) -> None:
        """Move the model to "cpu" or "cuda[:n]" and reset the agent's own states; call it between utterances.

        Raises LeapformerError for a device that does not exist and for half precision on the CPU.
        """
        target = available_device(device)
        if fp16 and target.type == "cpu":
            raise LeapformerError("fp16 needs a GPU; leave out --fp16 or give --device cuda")
        self._system.to(target, torch.float16 if fp16 else torch.float32)
        self.device = str(target)
        self._warm_up()
        self.reset()

    def _warm_up(self) -> None:
        """One READ and one WRITE on silence, which are not timed."""
        stream = TranslationStream(self._system, self._options)
        stream.engine.feed(np.zeros((self._system.step_frames, stream.features.n_bins), np.float32))
        stream.engine.finish()
        stream.engine.consume()

    def _log_compute(self, stream: TranslationStream) -> None:
        if self._compute_log is None:
            return
        self._compute_log.parent.mkdir(parents=True, exist_ok=True)
        with self._compute_log.open("a", encoding="utf-8") as log:
            log.write(json.dumps({**stream.report(), "threads": self._threads}) + "\n")


def _new_compute_log(args: Namespace) -> Path | None:
    """The log of computation; that of an earlier run is deleted, as SimulEval does with instances.log."""
    output = getattr(args, "output", None)
    if not output:
        return None
    log = Path(output) / COMPUTE_LOG
    if not getattr(args, "continue_unfinished", False):
        log.unlink(missing_ok=True)
    return log
