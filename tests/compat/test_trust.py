"""Checkpoints that would run code are refused in one line by every way of loading one, and run nothing."""

from __future__ import annotations

import argparse
import ast
import sys
import tarfile
from pathlib import Path
from typing import Any

import fairseq
import numpy as np
import pytest
import soundfile
import torch
from fairseq import checkpoint_utils, utils

from leapformer_fairseq import PLUGIN_DIR, register
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.compat.trust import EVALUATED, check_options, literal
from leapformer_fairseq.data.download import unpack
from leapformer_fairseq.models.averaging import load_checkpoint
from leapformer_fairseq.models.teacher import load_teacher
from leapformer_fairseq.support.errors import LeapformerError
from tests.covering import kept, shared_out
from tests.reversed_text import TRAINING, reversed_text
from tests.untrained import save_checkpoint

register()
MODELS = {
    "mt": ("leapformer_nmt_tiny", "translation"), "lm": ("leapformer_lm_tiny", "language_modeling"),
    "speech": ("leapformer_simulst_tiny", "speech_to_text"),
}  # fmt: skip
SMALL = ["--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "32", "--decoder-embed-dim", "32"]
STREAM = "--checkpoint FILE --data-root DATA/speech"
TRAIN = f"train DATA/mt --arch leapformer_nmt --save-dir OUT {TRAINING} {' '.join(SMALL)}"
#: kind of model -> the commands that load a checkpoint of it, each in its own way
WAYS = {
    "mt": (
        "generate DATA/mt --path FILE --cpu", "export --path FILE --data DATA/mt --out OUT",
        "interactive DATA/mt --path FILE --cpu --input DATA/test.en",
        "maps --path FILE --data DATA/mt --input the --out OUT",
        "validate DATA/mt --path FILE --cpu --task translation --max-tokens 99",
        f"{TRAIN} --restore-file FILE", f"{TRAIN} --finetune-from-model FILE",
        f"{TRAIN} --criterion leapformer_distillation --teacher FILE",
        "linearize --path FILE --data DATA/mt --attention leap --out OUT",
    ),
    "lm": ("eval-lm DATA/lm --path FILE --cpu", "eval-stream DATA/lm --path FILE --gen-subset test",
           "generate DATA/lm --task language_modeling --path FILE --cpu"),
    "speech": (
        f"stream {STREAM} DATA/a.wav", f"serve {STREAM} --port 0",
        f"simulate {STREAM} --source DATA/list --target DATA/list --out OUT",
        "curve --checkpoints FILE --data-root DATA/speech --source DATA/list --target DATA/list --out OUT --k 3",
        f"train DATA/speech --task speech_to_text --arch leapformer_s2t_tiny --save-dir OUT {TRAINING} "
        "--load-pretrained-encoder-from FILE",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = reversed_text(tmp_path_factory.mktemp("trust"), train=20, valid=5, test=5)
    (root / "speech").mkdir()
    (root / "speech/dict.txt").write_text("a 1\nb 1\n")
    (root / "speech/config.yaml").write_text("{vocab_filename: dict.txt}\n")
    soundfile.write(root / "a.wav", np.zeros(16_000), 16_000)
    (root / "list").write_text(f"{root / 'a.wav'}\n")
    for kind, (arch, task) in MODELS.items():
        save_checkpoint(root / f"{kind}.pt", root / kind, arch, task=task)
    return root


def crafted(data: Path, kind: str, **options: Any) -> str:
    """A checkpoint whose model has these options."""
    state = torch.load(data / f"{kind}.pt", weights_only=True)
    vars(state["cfg"]["model"]).update(options)
    torch.save(state, data / "crafted.pt")
    return str(data / "crafted.pt")


def code(mark: Path) -> str:
    return f"[__import__('pathlib').Path({str(mark)!r}).touch()] and None"


def unprotected(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq as it is."""
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", checkpoint_utils.load_checkpoint_to_cpu.__wrapped__)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fairseq" and "eval" in vars(module):
            monkeypatch.delitem(vars(module), "eval")


@pytest.mark.parametrize(("kind", "way"), shared_out([(kind, way) for kind, ways in WAYS.items() for way in ways], 0))
def test_no_way_of_loading_runs_what_an_option_says(
    kind: str, way: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mark, out = tmp_path / "mark", tmp_path / "out"
    file = crafted(data, kind, adaptive_softmax_cutoff=code(mark))
    words = way.replace("FILE", file).replace("DATA", str(data)).replace("OUT", str(out)).split()
    assert main(words) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("leapformer: error: ")]
    assert len(said) == 1 and "crafted.pt: option adaptive_softmax_cutoff is not a literal value" in said[0], said
    assert not mark.exists()


@pytest.mark.parametrize("protected", [True, False])
def test_without_the_patch_the_same_file_runs_code(
    protected: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:
        unprotected(monkeypatch)
    mark = tmp_path / "mark"
    with pytest.raises(Exception) as error:
        checkpoint_utils.load_model_ensemble_and_task([crafted(data, "mt", adaptive_softmax_cutoff=code(mark))])
    assert mark.exists() != protected
    assert isinstance(error.value, LeapformerError) == protected


def test_a_teacher_runs_no_code(data: Path, tmp_path: Path) -> None:
    with pytest.raises(LeapformerError, match="option character_filters is not a literal"):
        load_teacher(crafted(data, "lm", character_filters=code(tmp_path / "mark")), None)
    assert not (tmp_path / "mark").exists()


def test_from_pretrained_runs_no_code(data: Path, tmp_path: Path) -> None:
    from fairseq.models import MODEL_REGISTRY

    file = crafted(data, "mt", adaptive_softmax_cutoff=code(tmp_path / "mark"))
    with pytest.raises(LeapformerError, match="is not a literal value"):
        MODEL_REGISTRY["leapformer_nmt"].from_pretrained(str(Path(file).parent), Path(file).name, str(data / "mt"))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("form", ["namespace", "dict", "args", "nested", "bytes"])
@pytest.mark.parametrize("option", EVALUATED)
def test_every_evaluated_option_is_checked_wherever_it_stands(option: str, form: str) -> None:
    value: Any = "__import__('os').getcwd()"
    options = {option: value.encode() if form == "bytes" else value}
    section: Any = {
        "args": argparse.Namespace(**options),
        "namespace": {"model": argparse.Namespace(**options)},
        "nested": {"model": {"w2v_args": {"model": [argparse.Namespace(**options)]}}},
    }.get(form, {"task": options})
    with pytest.raises(LeapformerError, match=f"a.pt: option {option} "):
        check_options("a.pt", {}, section)


def test_no_other_option_reaches_eval() -> None:
    """Every name in an argument of `eval` and its kin in fairseq is known here, or no option of a checkpoint."""
    others = {
        "x", "line", "args", "cfg", "self", "utils", "options", "type", "int", "float", "strip", "uf", "str",
        "model_overrides", "common_eval", "lambda", "getattr",
    }  # fmt: skip
    found, folder = set(), Path(fairseq.__file__).parent
    for path in folder.rglob("*.py"):
        if path.relative_to(folder).parts[0] in ("examples", "benchmark"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (
                getattr(node.func, "id", None) == "eval" or getattr(node.func, "attr", "").startswith("eval_str_")
                or "eval_bool" in (getattr(node.func, "id", None), getattr(node.func, "attr", None))
            ):  # fmt: skip
                for part in ast.walk(ast.Module([ast.Expr(one) for one in node.args], [])):
                    found |= {getattr(part, "attr", None), getattr(part, "id", None)}
    assert found - {None} - others <= EVALUATED.keys()
    assert len(found & EVALUATED.keys()) > 20


def test_nothing_in_fairseq_evaluates_more_than_literals(tmp_path: Path) -> None:
    """The second guard: for an option that no list has, in a value that hydra or a command line brings."""
    for evaluates in (utils.eval_str_list, utils.eval_str_dict, utils.eval_bool):
        with pytest.raises(LeapformerError, match="fairseq would execute this"):
            evaluates(code(tmp_path / "mark"))
    assert not (tmp_path / "mark").exists()
    assert utils.eval_str_list("20000,60000", int) == [20000, 60000]
    assert utils.eval_bool("False") is False and utils.eval_bool(True) is False  # the latter is fairseq's


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("[(4, 3)] * 2 + [(5, -1)]", [(4, 3), (4, 3), (5, -1)]),
        ("(0.9, 0.98)", (0.9, 0.98)),
        ("20000,60000", (20000, 60000)),
        ("{'name': 'linformer'}", {"name": "linformer"}),
    ],
)
def test_what_fairseqs_models_give_is_a_literal(source: str, value: Any) -> None:
    assert literal(source) == value


@pytest.mark.parametrize(
    "source",
    ["open('x')", "x", "().__class__", "[x for x in (1,)]", "f'{1}'", "9**9", "[0] * 1001", "[[0] * 9] * 9", "(",
     "1 + 'a'", "1," * 6000, "(" * 900, "lambda: 1"],
)  # fmt: skip
def test_what_is_no_literal(source: str) -> None:
    with pytest.raises(ValueError):
        literal(source)


@pytest.mark.parametrize(
    ("part", "key"),
    [("model", "_name"), ("model", "arch"), ("task", "_name"), ("task", "task"), ("criterion", "_name")],
)
def test_only_registered_names(part: str, key: str, data: Path) -> None:
    state = torch.load(data / "mt.pt", weights_only=True)
    section = state["cfg"][part]
    options = vars(section) if isinstance(section, argparse.Namespace) else section
    options[key] = "os.system"
    torch.save(state, data / "crafted.pt")
    with pytest.raises(LeapformerError, match="'os.system' belongs neither to this package nor to fairseq"):
        checkpoint_utils.load_checkpoint_to_cpu(str(data / "crafted.pt"))


@pytest.mark.parametrize("value", ["${oc.create:'{a: 1}'}", "${${a}:1}", "x${oc.env:HOME}"])
def test_values_that_are_computed_are_refused(value: str, data: Path) -> None:
    with pytest.raises(LeapformerError, match="option encoder_embed_dim is computed when it is read"):
        checkpoint_utils.load_checkpoint_to_cpu(crafted(data, "mt", encoder_embed_dim=value))


def test_a_user_dir_in_a_checkpoint_is_not_imported(data: Path, tmp_path: Path) -> None:
    plugin, mark = tmp_path / "some_plugin", tmp_path / "mark"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(f"open({str(mark)!r}, 'w')")
    file = crafted(data, "mt", user_dir=str(plugin), _target_="some_plugin")
    state = torch.load(file, weights_only=True)
    state["cfg"]["common"]["user_dir"] = str(plugin)
    torch.save(state, file)
    assert main(["generate", str(data / "mt"), "--path", file, "--cpu", "--beam", "1"]) == 0
    assert not mark.exists() and "some_plugin" not in sys.modules
    assert main(["generate", str(data / "mt"), "--path", file, "--cpu", "--beam", "1", "--user-dir", str(plugin)]) == 0
    assert mark.exists()  # what the user names is


@pytest.mark.parametrize("cutoff", kept([None, "4,8", [4, 8]], None, [4, 8]))
def test_ordinary_checkpoints_load(cutoff: Any, data: Path, tmp_path: Path) -> None:
    path = tmp_path / "stock.pt"
    more = [] if cutoff is None else ["--adaptive-softmax-cutoff", "4,8", "--criterion", "adaptive_loss"]
    save_checkpoint(path, data / "mt", "transformer_tiny", *more, task="translation")
    state = torch.load(path, weights_only=True)
    if cutoff is not None:
        vars(state["cfg"]["model"])["adaptive_softmax_cutoff"] = cutoff
    torch.save(state, path)
    (model,), *_ = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    assert (model.decoder.adaptive_softmax is None) == (cutoff is None)
    # as fairseq 0.9 wrote it
    old = {**state, "cfg": None, "args": argparse.Namespace(**vars(state["cfg"]["model"]))}
    torch.save(old, path)
    (again,), *_ = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    assert again.state_dict().keys() == model.state_dict().keys()


def test_yaml_of_prepared_data_builds_no_objects(tmp_path: Path) -> None:
    from fairseq.data.audio.data_cfg import S2TDataConfig

    (tmp_path / "config.yaml").write_text(f"a: !!python/object/apply:os.mkdir ['{tmp_path}/mark']\n")
    with pytest.raises(Exception, match="Failed to load config"):
        S2TDataConfig(tmp_path / "config.yaml")
    assert not (tmp_path / "mark").exists()


def test_this_package_evaluates_and_unpickles_nothing() -> None:
    """Every file is read as data: `eval` gets checked literals, `torch.load` weights, numpy arrays."""
    found = set()
    for path in PLUGIN_DIR.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called, given = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
            runs = called in ("eval", "exec", "os.system") or called.startswith(("pickle.load", "torch.hub"))
            weights = called == "torch.load" and given.get("weights_only") != "True"
            if runs or weights or given.get("allow_pickle") == "True" or called.endswith("import_user_module"):
                found.add((path.name, called))
    # the one that has parsed the literal before, the one whose defect is looked for, and the folder that the user names
    allowed = {("trust.py", "eval"), ("checkpoints.py", "torch.load"), ("register.py", "import_user_module")}
    assert found == allowed


@pytest.mark.parametrize("name", ["../mark", "/tmp/leapformer-mark", "data/link"])
def test_an_archive_writes_nothing_outside_its_folder(name: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        member = tarfile.TarInfo(name)
        if name.endswith("link"):
            member.type, member.linkname = tarfile.SYMTYPE, "../../mark"
        archive.addfile(member)
    with pytest.raises(LeapformerError, match="cannot be unpacked"):
        unpack(tmp_path / "data.tar", tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["data.tar"] and not Path("/tmp/leapformer-mark").exists()


def test_a_checkpoint_that_is_only_read_is_checked(data: Path, tmp_path: Path) -> None:
    with pytest.raises(LeapformerError, match="option wer_args is not a literal value"):
        load_checkpoint(Path(crafted(data, "lm", wer_args=code(tmp_path / "mark"))))
