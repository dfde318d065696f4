"""Commands that are killed at any moment come, started again, to the results of an undisturbed run.

One moment of some in the default tier, many of all in the full one: `KILLS` is their number, `SEED` chooses them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import soundfile

from .commands import done, leapformer
from .data.text_trees import multi30k_tree, wikitext_tree
from .data.trees import mustc_tree, noises
from .kills import Case, Moment, differences, killed_and_resumed, results, started
from .made import made
from .reversed_text import reversed_text
from .scripted import sound
from .simul.conftest import SPECIALS, subwords
from .simul.test_loading import PLAN, write_config
from .studies.recipes.test_lra_recipe import TINY
from .studies.recipes.test_text_recipes import SMALL_BATCHES, TINY_NMT, TINY_SIZES
from .untrained import save_checkpoint

LM = (
    "--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 16 --optimizer adam --lr 2e-3 --cpu "
    "--max-tokens 160 --required-batch-size-multiple 1 --num-workers 0 --seed 1"
)


def _sentences(folder: Path) -> None:
    reversed_text(folder / "text", train=60, valid=12, test=12)


def _train(save: Path, data: Path, *more: str) -> list[str]:
    return ["train", str(data), *LM.split(), "--save-dir", str(save), *more]


def _teacher(folder: Path) -> None:
    _sentences(folder)
    more = "--decoder-self-attention softmax --max-update 8 --no-epoch-checkpoints"
    done(leapformer(*_train(folder / "teacher", folder / "text/lm", *more.split())))


def _graphs(folder: Path) -> None:
    _sentences(folder)
    more = "--decoder-self-attention entmax --max-update 4 --no-epoch-checkpoints"
    done(leapformer(*_train(folder / "teacher", folder / "text/lm", *more.split())))
    done(leapformer(*_extract(folder, folder / "graphs")))


def _extract(folder: Path, out: Path) -> list[str]:
    words = f"--block decoder-self --out {out} --sentences 20 --min-length 4 --subset train"
    path = folder / "teacher/checkpoint_last.pt"
    return f"sparsefinder extract {folder}/text/lm --path {path} {words}".split()


def _fitted(folder: Path) -> None:
    _graphs(folder)
    done(leapformer(*f"sparsefinder fit {folder}/graphs --out {folder}/fitted --seeds 1 --epochs 1".split()))


def _translator(folder: Path) -> None:
    data, pieces = folder / "data", sentencepiece.SentencePieceProcessor(model_file=str(subwords()))
    data.mkdir()
    shutil.copy(subwords(), data / "spm.model")
    names = [pieces.id_to_piece(index) for index in range(pieces.get_piece_size())]
    (data / "dict.txt").write_text("".join(f"{name} 1\n" for name in names if name not in SPECIALS), encoding="utf-8")
    np.savez(data / "gcmvn.npz", mean=np.full(80, 8.0), std=np.full(80, 3.0))
    write_config(data)
    save_checkpoint(
        folder / "st.pt", data, "leapformer_simulst_tiny", *PLAN, "--waitk-lagging", "1-3", "--encoder-causal"
    )
    for number in range(3):
        soundfile.write(folder / f"{number}.wav", sound(0.6 + number / 2, seed=number), 16_000)
    (folder / "source").write_text("".join(f"{folder}/{number}.wav\n" for number in range(3)))
    (folder / "target").write_text("hallo welt\n" * 3)


def _arrays(folder: Path) -> None:
    (folder / "tiny.yaml").write_text(TINY)
    done(leapformer(*f"lra prepare --protocol {folder}/tiny.yaml --tasks listops --data {folder}/data".split()))


def _recordings(folder: Path) -> None:
    splits = {"train": noises(5, 1), "dev": noises(2, 2), "tst-COMMON": noises(2, 3), "tst-HE": noises(2, 4)}
    mustc_tree(folder / "mustc", splits)


CASES = {
    "prepare-speech": Case(
        _recordings, lambda at, out: f"prepare mustc {at}/mustc --out {out} --vocab-size 40".split()
    ),
    "prepare-text": Case(
        lambda at: multi30k_tree(at / "data"),
        lambda at, out: f"prepare multi30k {at}/data --out {out} --vocab-size 90".split(),
    ),
    "corpus": Case(
        lambda at: None,
        lambda at, out: (
            f"corpus --task listops --out {out} --train 9 --dev 3 --test 3".split()
            + ["--min-length", "5", "--max-length", "90"]
        ),
    ),
    "train": Case(
        _sentences,
        lambda at, out: _train(
            out, at / "text/lm", *["--save-interval-updates", "2", "--keep-interval-updates", "1", "--max-update", "7"]
        ),
    ),
    "sparsefinder-extract": Case(_graphs, _extract),
    "sparsefinder-fit": Case(
        _graphs, lambda at, out: f"sparsefinder fit {at}/graphs --out {out} --seeds 1 2 --epochs 1".split()
    ),
    "linearize": Case(
        _teacher,
        lambda at, out: (
            f"linearize --path {at}/teacher/checkpoint_last.pt --attention leap --out {out} --keep 1".split()
            + ["--align-updates", "4", "--distill-updates", "4"]
        ),
    ),
    "study-probe": Case(
        lambda at: None,
        lambda at, out: (
            f"probe --probes reversal --attention leap --rates 1e-3 --updates 2 --seeds 1 2 --out {out}".split()
        ),
    ),
    "study-lra": Case(
        _arrays,
        lambda at, out: (
            f"lra run --protocol {at}/tiny.yaml --tasks listops --data {at}/data --out {out}".split()
            + ["--attention", "linear-relu", "--seeds", "1", "2"]
        ),
    ),
    "study-sparsefinder": Case(
        _fitted,
        lambda at, out: (
            f"sparsefinder pareto {at}/graphs --fitted {at}/fitted/seed1.pt --out {out} --windows 0 3".split()
            + f"--grid small --data {at}/text/lm --quality-points 1".split()
            + ["--mechanisms", "sparsefinder-distance", "entmax-window"]
        ),
    ),
    "study-curve": Case(
        _translator,
        lambda at, out: (
            f"curve --checkpoints {at}/st.pt --data-root {at}/data --source {at}/source --target {at}/target".split()
            + ["--out", str(out), "--k", "1 2", "--max-len-b", "9", "--limit", "2", "--repeats", "1"]
        ),
    ),
    "study-ablate": Case(
        _sentences,
        lambda at, out: (
            ["ablate", "--out", str(out), "--mechanisms", "leap", "--"]
            + ["train", str(at / "text/lm"), *LM.split(), "--max-epoch", "2", "--no-epoch-checkpoints"]
        ),
    ),
    "study-translation": Case(
        lambda at: multi30k_tree(at / "data"),
        lambda at, out: (
            f"recipe multi30k --root {at}/data --out {out} --epochs 1 --attention softmax".split() + [*TINY_NMT]
        ),
    ),
    "study-language-models": Case(
        lambda at: wikitext_tree(at / "data"),
        lambda at, out: (
            f"recipe language_model --root {at}/data --out {out} --epochs 1 --jobs 2 --vocab-size 120".split()
            + ["--attention", "relu leap", "--train-options", f"{TINY_SIZES} {SMALL_BATCHES} --tokens-per-sample 32"]
        ),
    ),
}
FEW, MANY = 1, int(os.environ.get("KILLS", 25))
#: of each kind the one that takes least, for the default tier
QUICK = ("corpus", "train")


@cache
def undisturbed(name: str) -> tuple[Path, dict[str, Any], int]:
    """Where the inputs of a case are, what it makes of them, and the number of changes."""
    inputs = made(f"kills/{name}", lambda folder: CASES[name].make(folder))
    out = inputs.parent / f"{name}-whole" / "out"
    shutil.rmtree(out.parent, ignore_errors=True)
    out.parent.mkdir()
    status, changes, said = started(CASES[name].words(inputs, out), out)
    assert status == 0, said
    return inputs, results(out), changes


def moments(name: str, changes: int, count: int) -> list[Moment]:
    """Moments of all the command's duration; of many, every second one is not at a change but somewhat later."""
    draw = random.Random(f"{name} {os.environ.get('SEED', 1)}")
    stops = [1 + int(changes * (part + draw.random()) / count) for part in range(count)]
    return [Moment(stop, draw.uniform(0.1, 8) if count > FEW and draw.random() < 0.5 else 0.0) for stop in stops]


def check(name: str, count: int) -> None:
    inputs, wanted, changes = undisturbed(name)
    assert changes >= 3 and wanted
    killed, wrong, report = 0, [], os.environ.get("KILLS_REPORT")
    out = inputs.parent / f"{name}-whole" / "out"  # as before: logs and records have the path in them
    for moment in moments(name, changes, count):
        was_killed, found, said = killed_and_resumed(CASES[name], inputs, out, moment)
        different = [said] if said else differences(wanted, found)
        killed += was_killed
        if different:
            wrong.append(f"{moment} of {changes}: {different}")
        if report:
            line = {"command": name, **vars(moment), "changes": changes, "killed": was_killed, "different": different}
            with open(report, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    assert not wrong, "\n".join(wrong)
    assert killed >= 0.6 * count, f"{killed} of {count} were killed, the others had ended"


@pytest.mark.parametrize("name", QUICK)
def test_a_killed_command_resumes_to_the_same_result(name: str) -> None:
    check(name, FEW)


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_a_command_that_is_killed_often_resumes_to_the_same_result(name: str) -> None:
    check(name, MANY)
