"""The `leapformer` command: finding sub-commands, their output, and errors as one line."""

import argparse
import importlib
import inspect
import json
import re
import subprocess
import sys
import types

import pytest

from leapformer_fairseq import PLUGIN_DIR, __version__
from leapformer_fairseq.attention import MECHANISMS
from leapformer_fairseq.cli import fairseq_commands
from leapformer_fairseq.cli import main as cli
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.options import add_command, described
from tests.compiler import needs_compiler
from tests.fresh import run_after


@pytest.fixture
def command(monkeypatch):
    """Registers a sub-command `fake` whose `run` can be set."""
    module = types.ModuleType("leapformer_fairseq.cli.fake")
    module.OPTIONS = "--value N:int"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "fake", "fake")
    return module


def failing(error: BaseException):
    def run(args):
        raise error

    return run


class TestDispatch:
    def test_arguments_and_status_pass_through(self, command):
        command.run = lambda args: args.value
        assert cli.main(["fake", "--value", "7"]) == 7

    def test_error_is_one_line(self, command, capsys):
        command.run = failing(LeapformerError("no such plan"))
        assert cli.main(["fake"]) == 2
        assert capsys.readouterr() == ("", "leapformer: error: no such plan\n")

    def test_error_of_a_worker_process_loses_its_traceback(self, command, capsys):
        text = "Caught LeapformerError in DataLoader worker.\nTraceback:\nx.errors.LeapformerError: no file: a.wav"
        command.run = failing(LeapformerError(text))
        assert cli.main(["fake"]) == 2
        assert capsys.readouterr().err == "leapformer: error: no file: a.wav\n"

    def test_interrupt(self, command, capsys):
        command.run = failing(KeyboardInterrupt())
        assert cli.main(["fake"]) == 130
        assert capsys.readouterr().err == "leapformer: interrupted\n"

    def test_wrong_usage(self, capsys):
        assert cli.main(["user-dir", "extra"]) == 2
        message = "unrecognized arguments: extra; `leapformer user-dir --help` tells more"
        assert capsys.readouterr() == ("", f"leapformer: error: {message}\n")
        assert cli.main(["bench", "attention", "--seed", "x"]) == 2
        message = "argument --seed: invalid int value: 'x'; `leapformer bench attention --help` tells more"
        assert capsys.readouterr() == ("", f"leapformer: error: {message}\n")

    def test_without_a_command_the_help_is_shown(self, capsys):
        assert cli.main([]) == 2
        assert "usage: leapformer COMMAND" in capsys.readouterr().err

    def test_an_unknown_command_is_one_line_with_what_may_be_meant(self, capsys):
        assert cli.main(["linearise"]) == 2
        message = "there is no command 'linearise'; did you mean linearize? `leapformer --help` shows all"
        assert capsys.readouterr() == ("", f"leapformer: error: {message}\n")

    def test_help_names_every_command(self, capsys):
        with pytest.raises(SystemExit) as exit_info:
            cli.main(["--help"])
        assert exit_info.value.code == 0
        out = capsys.readouterr().out
        words = re.findall(r"^  ([\w-]+)", out, re.MULTILINE)
        assert set(words) >= {*cli.COMMANDS, next(iter(fairseq_commands.COMMANDS))}
        assert all(name in out for name in fairseq_commands.COMMANDS)
        assert is_a_screen(out)


def is_a_screen(out):
    lines = out.splitlines()
    return 20 < len(lines) <= 45 and max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_modules_are_commands(name):
    """Functions that take options one by one take just those of their table."""
    module = importlib.import_module(f".{cli.COMMANDS[name]}", "leapformer_fairseq.cli")
    assert described(module.__doc__)
    parser = argparse.ArgumentParser()
    add_command(parser, module)
    for leaf in leaves(parser):
        options = {action.dest for action in leaf._actions} - {"help"}
        taken = set(inspect.signature(leaf.get_default("run")).parameters)
        assert taken == {"args"} or taken == options


def leaves(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [leaf for action in actions for step in action.choices.values() for leaf in leaves(step)] or [parser]


# Runs commands one after the other; after each a line says how it ended and which slow libraries there are by then.
IMPORTED = """
import sys
from leapformer_fairseq.cli.main import main
for words in sys.argv[1:]:
    try:
        status = main(words.split())
    except SystemExit as error:
        status = error.code
    slow = (name for name in ("torch", "fairseq", "scipy", "sklearn") if name in sys.modules)
    print("ended", words, status or 0, *slow, sep="|")
"""


class TestSlowLibrariesAreImportedWhereTheyAreUsed:
    def run(self, folder, *commands, slow=None):
        """What they print; the first that imports more of them than `slow` is the one that fails."""
        done = subprocess.run(
            [sys.executable, "-c", IMPORTED, *commands], capture_output=True, text=True, timeout=300, cwd=folder
        )
        assert (done.returncode, done.stderr) == (0, "")
        ended = [line for line in done.stdout.splitlines() if line.startswith("ended|")]
        assert ended == [f"ended|{words}|0" + (f"|{slow}" if slow else "") for words in commands]
        return done.stdout

    def test_user_dir_prints_one_line(self, tmp_path):
        assert self.run(tmp_path, "user-dir") == f"{PLUGIN_DIR}\nended|user-dir|0\n"

    def test_help_needs_none(self, tmp_path):
        names = (
            *("user-dir", "list", "corpus", "prepare", "recipe", "average", "score", "compare", "tts", "eval-stream"),
            *(
                "bench",
                "plot",
                "maps",
                "ablate",
                "lra",
                "report",
                "table",
                "probe",
                "export",
                "simulate",
                "curve",
                "study",
            ),
        )
        out = self.run(tmp_path, *(f"{name} --help" for name in names))
        assert [name for name in names if f"usage: leapformer {name} " not in out] == []

    def test_scores_tables_and_plans_need_none(self, tmp_path):
        scores = {
            "scores": {"BLEU": 12.5, "AL": 900.0},
            "signatures": {"BLEU": "x"},
            "n_instances": 1,
            "n_empty": 0,
            "compute": None,
        }
        for name, text in {
            "references": "one\ntwo\n",
            "a/generate-test.txt": "D-0\t0\tone\nD-1\t0\ttwo\n",
            "b/generate-test.txt": "D-0\t0\tone\nD-1\t0\tthree\n",
            "table/leap/options": "--attention leap",
            "table/leap/test/scores.json": json.dumps(scores),
            "report/leap/k3/scores.json": json.dumps(scores),
        }.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.run(
            tmp_path,
            "score a/generate-test.txt --references references --json scores.json",
            "compare a b --references references --samples 100 --json compared.json",
            "table table",
            "report report",
            "recipe",
            f"plot {PLUGIN_DIR.parent / 'docs/results/raw/training/train.json'} --out times.png",
        )

    def test_mechanisms_need_torch_alone(self, tmp_path):
        self.run(tmp_path, "list", "list leap", "list linear", slow="torch")


class TestList:
    def test_json(self, capsys):
        assert cli.main(["list", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert {mechanism["name"] for mechanism in found["mechanisms"]} == set(MECHANISMS)
        for mechanism in found["mechanisms"]:
            assert mechanism["summary"]
            assert len(mechanism["options"]) == len(MECHANISMS[mechanism["name"]].options)

    def test_all_mechanisms_fit_on_a_screen(self, capsys):
        assert cli.main(["list"]) == 0
        out = capsys.readouterr().out
        assert is_a_screen(out)
        rows = re.findall(r"^ {2}(?:[EDC ] ){2}[EDC ]  (.*(?:\n {9}.*)*)", out, re.MULTILINE)
        assert sorted(re.findall(r"[\w-]+", " ".join(rows))) == sorted(MECHANISMS)

    def test_blocks_stand_beside_the_names(self, capsys):
        assert cli.main(["list"]) == 0
        out = capsys.readouterr().out
        assert "\n  E   C  abc-cluster\n    D    abc-dilated, abc-window\n" in out and "  E D C  softmax\n" in out

    @pytest.mark.parametrize("name", sorted(MECHANISMS))
    def test_the_page_of_a_mechanism_tells_all_its_options(self, name, capsys):
        assert cli.main(["list", name]) == 0
        out, mechanism = capsys.readouterr().out, MECHANISMS[name]
        assert max(map(len, out.splitlines())) <= 100
        told = " ".join(out.split())
        assert f"blocks: {', '.join(mechanism.capabilities.blocks)}" in told
        for option in mechanism.options:
            assert f"{option.flag} ({type(option.default).__name__}" in told and option.help in told
            assert all(choice in told for choice in option.choices)
        for reason in mechanism.capabilities.unsupported.values():
            assert reason in told

    def test_what_is_refused_names_where(self, capsys):
        assert cli.main(["list", "cosformer"]) == 0
        told = capsys.readouterr().out
        assert "  decoder-self, decoder-cross\n      it needs the target's length" in told
        assert "  cross-attention with wait-k\n      it is not defined over the prefixes" in told
        assert "  a streaming encoder\n      it depends on the whole sequence" in told

    def test_a_family_tells_what_its_members_compute(self, capsys):
        assert cli.main(["list", "linear"]) == 0
        out = capsys.readouterr().out
        assert "E D C  leap\n       LeaPformer: relu(q)" in out and "luna" not in out

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("leep", "list knows no 'leep'; did you mean leap? "),
            ("zzzzz", "list knows no 'zzzzz'; "),
            ("model", "list knows no 'model'; did you mean models? "),
        ],
    )
    def test_an_unknown_name_is_one_line_with_what_may_be_meant(self, name, message, capsys):
        assert cli.main(["list", name]) == 2
        remedy = (
            "`leapformer list` shows all; --user-dir FOLDER adds the mechanisms that its __init__.py imports, "
            "--policy-file FILE policies"
        )
        assert capsys.readouterr() == ("", f"leapformer: error: {message}{remedy}\n")

    def test_a_name_and_json(self, capsys):
        assert cli.main(["list", "leap", "--json"]) == 2
        assert "--json prints everything; leave leap out" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("kind", "line"),
        [
            ("models", "leapformer_simulst_tiny"),
            ("tasks", "  leapformer_classification\n"),
            ("criterions", "  leapformer_distillation\n"),
        ],
    )
    def test_models_tasks_and_criterions(self, kind, line, capsys):
        pytest.importorskip("fairseq")
        assert cli.main(["list", kind]) == 0
        assert line in capsys.readouterr().out

    def test_our_tasks_and_criterions_and_not_those_of_fairseq(self, capsys):
        pytest.importorskip("fairseq")
        assert cli.main(["list", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert list(found["tasks"]) == ["leapformer_classification"]
        assert {"leapformer_classification", "tacotron2_with_length"} <= set(found["criterions"])
        assert "cross_entropy" not in found["criterions"] and all(found["criterions"].values())


class TestDoctor:
    @needs_compiler
    def test_report(self, capsys, monkeypatch):
        pytest.importorskip("fairseq")
        monkeypatch.setenv("LEAPFORMER_DISPATCH", "chunk=32")
        assert cli.main(["doctor"]) == 0
        out = capsys.readouterr().out
        assert f"leapformer-fairseq {__version__}" in out
        assert "checkpoint-types          applied" in out
        assert "Dispatch on cpu" in out and "chunk 32" in out
        assert "Decoding step on a CPU: compiled" in out and "Whole sequences on a CPU: compiled" in out

    @pytest.mark.parametrize(
        ("variable", "value", "step", "whole"),
        [
            ("LEAPFORMER_NATIVE", "0", "in PyTorch (LEAPFORMER_NATIVE=0)", "in PyTorch (LEAPFORMER_NATIVE=0)"),
            pytest.param(
                *("LEAPFORMER_DISPATCH", "kernels=0"),
                *("compiled", "in PyTorch (LEAPFORMER_DISPATCH says kernels=False)"),
                marks=needs_compiler,
            ),
            (
                "CC",
                "none",
                *["in PyTorch (there is no C compiler 'none'; install gcc or clang, or name it by CC)"] * 2,
            ),
            (
                "XDG_CACHE_HOME",
                "/proc/none",
                *[
                    "in PyTorch (/proc/none/leapformer_fairseq cannot be written (No such file or directory); name "
                    "another cache by XDG_CACHE_HOME)"
                ]
                * 2,
            ),
        ],
    )
    def test_why_kernels_do_not_run(self, capsys, monkeypatch, tmp_path, variable, value, step, whole):
        from leapformer_fairseq.attention.ops import cpu
        from leapformer_fairseq.cli import doctor

        monkeypatch.setenv(variable, value)
        if variable == "CC":
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        cpu._loaded.cache_clear()
        try:
            doctor._print_dispatch()
        finally:
            cpu._loaded.cache_clear()
        out = capsys.readouterr().out
        assert f"Decoding step on a CPU: {step}\nWhole sequences on a CPU: {whole}\n" in out

    def test_missing_requirement(self, capsys, monkeypatch):
        from leapformer_fairseq.cli import doctor

        monkeypatch.setattr(doctor, "REQUIRED", ("torch", "no-such-package"))
        assert cli.main(["doctor"]) == 1
        assert "Missing: no-such-package" in capsys.readouterr().out


class TestFairseqCommands:
    @pytest.fixture
    def calls(self, monkeypatch):
        """Command lines that would have reached fairseq."""
        import fairseq_cli.generate
        import fairseq_cli.train

        seen = []
        monkeypatch.setattr(sys, "argv", ["pytest"])
        for module in (fairseq_cli.train, fairseq_cli.generate):
            monkeypatch.setattr(module, "cli_main", lambda: seen.append(sys.argv))
        return seen

    def test_arguments_are_untouched(self, calls):
        arguments = ["data", "--arch", "leapformer_lm", "--lr", "-1e-3", "--", "x"]
        assert cli.main(["train", *arguments]) == 0
        assert calls == [["leapformer train", "--user-dir", str(PLUGIN_DIR), *arguments]]

    def test_every_spelling_of_our_path_is_not_needed(self, calls, tmp_path):
        (tmp_path / "renamed").symlink_to(PLUGIN_DIR)
        paths = PLUGIN_DIR, f"{PLUGIN_DIR}/", PLUGIN_DIR / ".." / PLUGIN_DIR.name, tmp_path / "renamed", PLUGIN_DIR.name
        for path in paths:
            assert cli.main(["generate", "--user-dir", str(path), "data"]) == 0
            assert cli.main(["generate", "data", f"--user-dir={path}"]) == 0
        assert calls == [["leapformer generate", "--user-dir", str(PLUGIN_DIR), "data"]] * 2 * len(paths)

    def test_second_copy_is_explained(self, calls, tmp_path, capsys):
        (tmp_path / PLUGIN_DIR.name).mkdir()
        assert cli.main(["generate", "--user-dir", str(tmp_path / PLUGIN_DIR.name), "data"]) == 2
        assert "is a second copy of the plugin" in capsys.readouterr().err and calls == []

    def test_an_error_of_fairseq_is_explained(self, capsys, monkeypatch):
        import fairseq_cli.train

        def fail():
            raise OSError("Model file not found: a.pt")

        monkeypatch.setattr(sys, "argv", ["pytest"])
        monkeypatch.setattr(fairseq_cli.train, "cli_main", fail)
        assert cli.main(["train", "data", "--arch", "x"]) == 2
        assert capsys.readouterr().err == "leapformer: error: model file not found: a.pt; check the path\n"

    def test_missing_arch_is_explained(self, calls, capsys):
        assert cli.main(["train", "data"]) == 2
        assert "train needs --arch" in capsys.readouterr().err
        assert calls == []

    @pytest.mark.parametrize("name", fairseq_commands.COMMANDS)
    def test_help(self, name, capsys, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["pytest"])
        assert cli.main([name, "--help"]) == 0
        assert f"usage: leapformer {name}" in capsys.readouterr().out

    def test_help_knows_model_task_and_criterion(self, capsys, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["pytest"])
        chosen = "--arch transformer_lm --task language_modeling --criterion label_smoothed_cross_entropy"
        assert cli.main(["train", *chosen.split(), "--help"]) == 0
        out = capsys.readouterr().out
        assert all(flag in out for flag in ("--adaptive-softmax-cutoff", "--tokens-per-sample", "--label-smoothing"))

    @pytest.fixture
    def probe_model(self, monkeypatch):
        """A registered model with one flag beyond its stock parent's."""
        from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
        from fairseq.models.transformer import TransformerModel

        class Probe(TransformerModel):
            @classmethod
            def add_args(cls, parser):
                super().add_args(parser)
                parser.add_argument("--probe-flag", help="a flag of ours")

        monkeypatch.setitem(MODEL_REGISTRY, "leapformer_probe", Probe)
        monkeypatch.setitem(ARCH_MODEL_REGISTRY, "leapformer_probe", Probe)
        monkeypatch.setattr(sys, "argv", ["pytest"])

    @pytest.mark.usefixtures("probe_model")
    def test_help_without_arch_shows_our_flags_only(self, capsys):
        assert cli.main(["train", "--help"]) == 0
        out = capsys.readouterr().out
        assert "--probe-flag" in out
        assert "--decoder-ffn-embed-dim" not in out

    @pytest.mark.usefixtures("probe_model")
    def test_help_with_arch_shows_all_its_flags(self, capsys):
        assert cli.main(["train", "--arch", "leapformer_probe", "--help"]) == 0
        out = capsys.readouterr().out
        assert "--probe-flag" in out
        assert "--decoder-ffn-embed-dim" in out


def test_libraries_stay_quiet_whatever_fairseq_imports():
    """One of fairseq's models asks at its import for all that any library has to say."""
    code = "from leapformer_fairseq.cli.main import main; main(['user-dir']); import fairseq.models, logging\n"
    code += "logging.getLogger('matplotlib').debug('DEBUGGING'); logging.getLogger('other').info('INFORMING')"
    done = run_after("import torch", code)
    assert done.returncode == 0, done.stderr
    assert "DEBUGGING" not in done.stderr and "INFORMING" not in done.stderr
