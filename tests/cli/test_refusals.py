"""What does not exist or cannot serve is refused in one line before any work, by every command, and nothing is left."""

from __future__ import annotations

import shlex

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.runtime.commands import demo
from leapformer_fairseq.studies.lra.grid import Grid
from tests.reversed_text import reversed_text
from tests.scoring.pictures.test_maps import data  # noqa: F401
from tests.untrained import save_checkpoint

SOFTMAX = [f"--{block}-attention=softmax" for block in ("encoder-self", "decoder-self", "decoder-cross")]


@pytest.fixture(scope="module")
def places(data, tmp_path_factory) -> dict[str, object]:  # noqa: F811
    """What the command lines below are filled with: checkpoints, data, an exported model."""
    text = reversed_text(tmp_path_factory.mktemp("text"), train=20, valid=5, test=5)
    pair = ("--source-lang", "en", "--target-lang", "de")
    for name, line in (("source", data / "a.wav"), ("target", "w1")):
        (data / name).write_text(f"{line}\n")
    training = f"train {text}/mt --task translation --arch leapformer_nmt_tiny --max-update 2 --max-tokens 500 "
    return {
        "data": data,
        "text": text,
        "mt": text / "mt",
        "teacher": save_checkpoint(
            data / "teacher.pt", text / "mt", "leapformer_nmt_tiny", *pair, *SOFTMAX, task="translation"
        ),
        "st": save_checkpoint(data / "st.pt", data, "leapformer_simulst_tiny", "--waitk-lagging", "2"),
        "model": demo.MODEL,
        "lists": f"--source {data}/source --target {data}/target",
        "train": f"{training} --optimizer adam --lr 1e-3",
        "unoptimized": training,
    }


UNKNOWN = "unknown attention mechanism 'leep'; did you mean leap? `leapformer list` shows all"
REFUSED = [
    # a mechanism that does not exist
    ("ablate --out o --mechanisms leep -- {train}", UNKNOWN),
    ("ablate --out o --baseline leep -- {train}", UNKNOWN),
    ("linearize --path {teacher} --out o --attention leep", UNKNOWN),
    ("linearize --path {teacher} --out o --attention relu/leep/relu", UNKNOWN),
    ("probe --out o --attention leap leep", UNKNOWN),
    *[
        (f"bench {name} --out o --mechanisms leep", UNKNOWN)
        for name in ("attention", "decode", "targets", "bounded", "sparse", "streaming", "train", "scaling", "papers")
    ],
    ("bench model --out o --mechanisms softmax/leep/leap", UNKNOWN),
    ("bench lra --out o --mechanisms leep", "--mechanisms leep: choose from softmax"),
    ("lra run --protocol luna --data d --out o --attention leep", "--attention leep: protocol luna has softmax"),
    ("lra params --protocol luna --out o --attention leep", "--attention leep: protocol luna has softmax"),
    ("sparsefinder blocks {mt} --path no.pt --out o --mechanisms leep", UNKNOWN),
    # an option that does not exist, and a value that an option cannot have
    ("ablate --out o -- {train} --leap-faktor 2", "the training command: unrecognized arguments: --leap-faktor 2; see"),
    ("ablate --out o --mechanisms leap -- {train} --leap-factor 0", "--leap-factor 0 does not divide"),
    (
        "linearize --path {teacher} --out o --attention leap:leap-faktor=2",
        "unrecognized arguments: --leap-faktor 2; see",
    ),
    ("linearize --path {teacher} --out o --attention leap:leap-factor=0", "--leap-factor 0 does not divide"),
    ("linearize --path {teacher} --out o --attention leap:leap-factor=x", "--leap-factor: invalid int value: 'x'; see"),
    ("linearize --path {teacher} --out o --attention leap -- --no-such 3", "unrecognized arguments: --no-such 3; see"),
    ("probe --out o --attention leap:leap-faktor=2", "leap has no option leap-faktor; it has leap-factor"),
    ("probe --out o --attention leap:leap-factor=0", "--leap-factor 0 does not divide"),
    ("probe --out o --attention leap:leap-factor=x", "leap-factor 'x': give a number"),
    ("probe --out o --probes recall --attention abc-mlp:abc-activation=tanh", "--abc-activation 'tanh': choose from"),
    (
        "lra run --protocol luna --data d --out o --train-options '--no-such 3'",
        "unrecognized arguments: --no-such 3; see",
    ),
    ("bench attention --out o --mechanism", "argument --mechanisms: expected at least one argument; `leapformer bench"),
    # a block that it cannot serve
    (
        "ablate --out o --mechanisms longformer --blocks decoder-self -- {train}",
        "nothing can be tried; of 1, longformer in decoder-self: ",
    ),
    ("linearize --path {teacher} --out o --attention longformer", "longformer cannot be used: it reads the whole"),
    ("linearize --path {teacher} --out o --attention a/b/c/d", "--attention a/b/c/d: 4 plans; give ENCODER"),
    ("probe --out o --attention longformer", "longformer cannot be probed by recall"),
    ("probe --out o --probes recall --attention abc-pool", "abc-pool cannot be probed by recall"),
    *[
        (f"bench {name} --out o --mechanisms longformer", "longformer cannot be used: it reads the whole")
        for name in ("decode", "targets", "streaming", "train", "scaling", "model")
    ],
    ("bench sparse --out o --mechanisms leap", "leap is not measured: it has no blocks"),
    ("ablate --out o --blocks encoder -- {train}", "--blocks encoder: this model has encoder-self"),
    ("sparsefinder extract {mt} --path no.pt --block encoder --out o", "--block encoder: choose from: encoder-self"),
    ("maps --path {st} --input {data}/a.wav --out o --block encoder", "--block encoder: there is no such block"),
    # numbers out of their range
    ("ablate --out o --jobs 0 -- {train}", "--jobs 0: give at least 1"),
    ("ablate --out o -- {unoptimized}", "needs --optimizer"),
    ("linearize --path {teacher} --out o --attention leap --keep 99", "--keep 99: "),
    ("linearize --path {teacher} --out o --attention leap --align-updates -1", "--align-updates -1: give at least 1"),
    ("linearize --path {teacher} --out o --attention leap --task-updates -1", "--task-updates -1: give at least 0"),
    ("linearize --path {teacher} --out o --attention leap --processes 2", "--processes 2 needs --launcher torchrun"),
    ("linearize --path {teacher} --out o --attention leap --restarts -1", "--restarts -1: give at least 0"),
    ("linearize --path {teacher} --out o --attention leap --sentences 0", "--sentences 0: give at least 1"),
    ("linearize --path {teacher} --out o --attention leap --align-rate 0", "--align-rate 0.0: give a number above 0"),
    ("probe --out o --attention leap --jobs 0", "--jobs 0: give at least 1"),
    ("probe --out o --attention leap --updates 0", "--updates 0: give a number above 0"),
    ("probe --out o --attention leap --rates -1", "--rates -1: give a number above 0"),
    ("probe --out o --probes nothing", "--probes nothing: choose from recall"),
    ("bench attention --out o --device tpu", "--device tpu is not available"),
    ("bench scaling --out o --dtype bfloat16", "this compares processes on CPUs"),
    ("lra run --protocol luna --data d --out o --jobs 0", "--jobs 0: give at least 1"),
    ("lra run --protocol luna --data d --out o --quirks nothing", "--quirks nothing: choose from"),
    ("lra prepare --protocol luna --data o --tasks nothing", "--tasks nothing: protocol luna has listops"),
    ("lra prepare --protocol luna --data o", "listops is not generated by protocol luna; give --root"),
    (
        "curve --checkpoints {model} --out o {lists} --policies wait-q",
        "--policy 'wait-q': did you mean wait-k? choose from wait-k, hold-n",
    ),
    ("curve --checkpoints {model} --out o {lists} --k 0", "--k 0: give at least 1"),
    (
        "curve --checkpoints {model} --out o {lists} --policies alignatt",
        "exported without attention weights; export it with --alignments",
    ),
    ("curve --checkpoints {model} --out o {lists} --max-draft 0", "--max-draft 0: give"),
    ("sparsefinder fit no --out o", "no/graphs.json cannot be read"),
    ("sparsefinder evaluate no --mechanism leap --out o", "no/graphs.json cannot be read"),
    ("sparsefinder blocks {mt} --path no.pt --out o --grid nothing", "--grid nothing: choose from"),
    ("corpus --out o --train 0", "0 train utterances are not possible"),
    ("corpus --out o --train 10 --dev 2 --test 2 --vocab-size 2", "cannot train a subword model of 2 pieces"),
    ("corpus --out o --contour 6", "--contour is for --task pathfinder"),
    ("corpus --out o --task nothing", "argument --task: invalid choice: 'nothing'"),
    ("corpus --out o --task pathfinder --workers 0", "--workers 0: give at least 1"),
    ("corpus --out o --task listops --train 0", "--train 0: give at least 1"),
    ("prepare text {text} --pair en-de --out o --vocab-size 0", "0: give a whole number of at least 8"),
    ("prepare text {text} --pair en --out o", "--pair en: give two languages"),
    ("prepare iwslt14-documents {text} --out o --window 0", "--window 0: give a whole number"),
    ("prepare lra listops no --quirks nothing --out o", "--quirks nothing: the data of listops has"),
    ("prepare nothing no --out o", "invalid choice: 'nothing'"),
    ("export --path {teacher} --out o --check -1", "--check -1: give a number of sources"),
    ("export --path {teacher} --out o --sentencepiece-model no", "--sentencepiece-model no: no such file"),
    ("export --path {teacher} --out o --engine tensorrt", "--engine tensorrt: give one of onnx, ctranslate2"),
    (
        "export --path {teacher} --out o --engine ctranslate2 --alignments",
        "--alignments: --engine ctranslate2 has none",
    ),
    ("export --path {teacher} --out o --bpe-codes no", "--bpe-codes no: no such file"),
    ("export --path {teacher} --out o --moses=-de", "--moses -de: give languages, as in en-de"),
    ("export --path {st} --data {data} --out o --pre-decision-ratio 0", "--pre-decision-ratio is 0; it must"),
    ("maps --path {st} --input {data}/a.wav --out o --layer 99", "--layer 99: there is no such layer"),
    ("maps --path {st} --input {data}/a.wav --out o --lines 0", "--lines 0: give at least 1"),
    ("maps --path {st} --input no.wav --out o", "no audio file at no.wav"),
    ("simulate --checkpoint {model} --out o {lists} --waitk-lagging 0", "--waitk-lagging 0: give at least 1"),
    ("simulate --checkpoint {model} --out o {lists} --policy wait-q", "--policy 'wait-q': did you mean wait-k?"),
    (
        "simulate --checkpoint {model} --out o {lists} --policy alignatt",
        "exported without attention weights; export it with --alignments",
    ),
    ("simulate --checkpoint {model} --out o {lists} --catch-up 0", "--catch-up 0.0: give"),
    ("simulate --checkpoint {model} --out o --talks no", "--talks no has no recordings.txt"),
    ("sentence-ends --train {data}/some.tsv --valid {data}/some.tsv --out o/x.npz --updates 0", "--updates 0 and"),
    ("sentence-ends --train {data}/some.tsv --valid {data}/some.tsv --out o/x.npz --ahead-ms 5", "--ahead-ms 5: give"),
    ("tts --path {model} --text a --out o", "holds a model for speech; export one of leapformer_tts"),
    ("tts --path {st} --text a --out o", "speech needs leapformer_tts"),
    ("tts --path {st} --text a --out o --max-steps 0", "--max-steps 0: give a number from 1"),
    ("serve --checkpoint {model} --port 0 --waitk-lagging 0", "--waitk-lagging 0: give at least 1"),
    ("stream {data}/a.wav --checkpoint {model} --waitk-lagging 0 --log o", "--waitk-lagging 0: give at least 1"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[words for words, _ in REFUSED])
def test_it_is_one_line_and_nothing_is_left(words, message, places, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Grid, "check_data", lambda self, task: None)  # of which there is none here
    assert main(shlex.split(words.format(**places))) == 2
    err = capfd.readouterr().err
    assert message in err and err.count("\n") == 1 and len(err) < 800
    assert not list(tmp_path.iterdir())
