"""`leapformer score`: score simultaneous or generated translations, and fairseq's logs. BLEU, chrF and latency of a run
of SimulEval or of whole talks; BLEU and chrF of generated text; perplexity, accuracy or losses of speech in the
output of eval-lm or validate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..data.wikitext import count_tokens
from ..runtime.formats.runlog import UNITS, read_threads
from ..scoring.outputs import score_evaluation, score_generation, score_validation
from ..scoring.pieces import SEGMENTERS
from ..scoring.report import score_run
from ..scoring.talk_report import TalkOptions, kind_of, score_resegmented, score_talks
from ..support.errors import LeapformerError
from ..support.files import write_json
from ..support.lines import read_lines
from ..support.options import TOKENIZE, choice, flag
from ..support.signature import signature
from . import score_talks as talks

OPTIONS = f"""
output OUTPUT...        the --output folder of simuleval, a generate-*.txt (or those of all shards), a text with a
                        translation per line, the output of eval-lm or validate, or logs of talks: OmniSTEval's JSONL,
                        simulstream's metrics log, a resegmented JSONL
--references FILE       for a generate-*.txt or a text, and with --segments: one detokenised reference per line
--training-text FILE    the target side of the training data: also score how many of the references' words that are not
                        among its 100 most frequent were translated (rare_recall)
--text FILE             for the output of eval-lm: the text that was evaluated
--examples FILE         for the output of validate: the text or labels that were validated, one per line
--checkpoint FILE       the model; with --json, how it was trained is noted, too
{TOKENIZE}
--unit, --level {choice(UNITS)} = word  what has a delay, as the run's --eval-latency-unit
--json FILE             also write all scores, with those of each utterance, to FILE
translations of whole talks:
--segments FILE         the segments that the references translate: YAML or JSON, a list of {{wav: NAME, offset: S,
                        duration: S}}
--segmenter {choice(SEGMENTERS)} = soft  how a talk is cut into segments: soft (SoftSegmenter) or mwer (mwerSegmenter,
                        least edit distance, with the package mweralign)
--lang CODE             --segmenter soft: cut words as Moses does for this language
--resegmented FILE      also write the pieces, as OmniSTEval does
--quality-command COMMAND  a program that scores segments, such as COMET in its own environment: reads and writes JSON
                        Lines
--transcripts FILE      for --quality-command: source text, one line per segment
"""
_UNITS_OF_SCORES = {
    "BLEU": "",
    "chrF": "",
    "rare_recall": "%",
    "AP": "",
    "perplexity": "",
    "bits": "per token",
    "accuracy": "%",
    **dict.fromkeys(("loss", "L1", "MSE", "end"), ""),
}  # all others are in milliseconds


def run(
    output: Sequence[str],
    references: str | None,
    training_text: str | None,
    text: str | None,
    examples: str | None,
    checkpoint: str | None,
    tokenize: str,
    unit: str,
    json: str | None,
    segments: str | None,
    segmenter: str,
    lang: str | None,
    resegmented: str | None,
    quality_command: str | None,
    transcripts: str | None,
) -> None:
    """Print a table of scores. Raises LeapformerError for a folder or option that cannot be scored."""
    if sum(map(bool, (references, text, examples))) > 1:
        raise LeapformerError(
            "--references is for translations, --text for language models, --examples for validate; give one of them"
        )
    options = TalkOptions(unit, segmenter, lang, tokenize, quality_command, transcripts, resegmented)
    of_talks = _are_talks(output[0], references, text or examples, segments, options)
    if training_text and (of_talks or text or examples):
        raise LeapformerError("--training-text is for translations of sentences; leave it out here")
    if len(output) > 1 and not references and not of_talks:
        raise LeapformerError(f"{output[1]}: only translations are scored from several files, with --references")
    lines: Callable[[dict[str, Any]], list[str]] = _lines
    if of_talks and segments and references:
        report, lines = score_talks(output, segments, references, options), talks.lines
    elif of_talks:
        report, lines = score_resegmented(output, options), talks.lines
    elif references:
        report = score_generation(output, references, tokenize, training_text)
    elif text:
        report, lines = score_evaluation(output[0], count_tokens(text)), partial(_lines, counted="tokens")
    elif examples:
        report = score_validation(output[0], sum(1 for _ in read_lines(examples)))
        lines = partial(_lines, counted="lines")
    elif Path(output[0]).is_file():
        raise LeapformerError(
            f"{output[0]} is a file; give --references for translations, --text for the output of eval-lm, or "
            "--examples for that of validate"
        )
    else:
        utterances(output[0], tokenize, unit, checkpoint, json, training_text)
        return
    _finish(report, checkpoint, json, None, lines)


def utterances(
    folder: str, tokenize: str, unit: str, checkpoint: str | None, json: str | None, training_text: str | None = None
) -> None:
    """Score the run of SimulEval, or of `leapformer simulate`, in a folder, and print a table."""
    _finish(score_run(folder, tokenize, unit, training_text), checkpoint, json, read_threads(folder), _lines)


def _are_talks(
    output: str, references: str | None, other: str | None, segments: str | None, options: TalkOptions
) -> bool:
    """Whether whole talks are scored. Raises LeapformerError for incompatible options; `other`: --text, --examples."""
    if segments and other:
        raise LeapformerError("--segments is for translations of talks; leave --text and --examples out")
    if segments and not references:
        raise LeapformerError(f"--segments {segments} needs --references, a line for each segment")
    if segments:
        return True
    kind = None if references or other else kind_of(Path(output))
    if kind in ("talks", "stream"):
        raise LeapformerError(
            f"{output} is a log of talks; give --segments and --references (of utterances: the folder it is in)"
        )
    for name in ("quality_command", "transcripts", "lang", "resegmented"):
        if kind is None and getattr(options, name) is not None:
            raise LeapformerError(f"{flag(name)} is for translations of talks; give --segments, too")
    if kind and options.resegmented:
        raise LeapformerError(f"--resegmented {options.resegmented}: {output} is that already; leave it out")
    return kind == "pieces"


def _finish(
    report: dict[str, Any],
    checkpoint: str | None,
    json: str | None,
    threads: int | None,
    lines: Callable[[dict[str, Any]], list[str]],
) -> None:
    """Write and print a report; `threads` are those with which the run was timed, if its log says so."""
    if checkpoint:
        from ..models.averaging import describe_checkpoint  # imports torch, without which scores are fast

        report["model"] = describe_checkpoint(checkpoint) | {"signature": signature(threads=threads)}
    if json:
        write_json(json, report, "--json")
    print("\n".join(lines(report)))


def _lines(report: dict[str, Any], counted: str = "") -> list[str]:
    if counted:
        lines = [f"{report['n_instances']} {counted}"]
    else:
        lines = [f"{report['n_instances']} utterances, {report['n_empty']} without output (they have no latency)"]
    width = max(8, *(len(name) for name in report["scores"]))
    for name, value in report["scores"].items():
        half = report.get("intervals", {}).get(name)
        margin = "" if half is None else f" ± {half:.3f}"
        unit = _UNITS_OF_SCORES.get(name.removesuffix("_CA"), "ms")
        lines.append(f"{name:{width}}{value:12.3f}{margin} {unit}".rstrip())
    compute = report["compute"]
    if compute and compute["seconds_per_second"] is not None:
        lines.append(f"{'compute':{width}}{compute['seconds_per_second']:12.3f} s per second of audio")
    if report.get("intervals"):
        lines.append("±: half of the 95 % interval by resampling of the sentences")
    return [
        *lines,
        *report.get("marks", []),
        *(f"{name}: {signature}" for name, signature in report["signatures"].items()),
    ]
