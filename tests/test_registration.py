"""Importing changes nothing, `register` does, and every way in calls it; each in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from leapformer_fairseq import PLUGIN_DIR

from .fresh import run_after

pytest.importorskip("fairseq")

# Everything that could be replaced: what is in fairseq's modules and classes, and the contents of its registries.
SNAPSHOT = '''
import sys

def snapshot():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("fairseq", "fairseq_cli"):
            for key, value in vars(module).items():
                found[name, key] = value
                if isinstance(value, type) and value.__module__.startswith("fairseq"):
                    found.update(((name, key, inner), it) for inner, it in vars(value).items())
                if isinstance(value, dict) and key.isupper():
                    found.update(((name, key, repr(inner)), it) for inner, it in value.items())
    from fairseq.registry import REGISTRIES
    for name, registry in REGISTRIES.items():
        found.update(((name, inner), it) for inner, it in registry["registry"].items())
    import numpy, torch
    found["numpy.compat"] = getattr(numpy, "compat", None)
    found["safe"] = tuple(torch.serialization.get_safe_globals())
    found["hooks"] = (sys.excepthook, *sys.meta_path)
    return found

def changed(before, after):
    """The names of what is new, and of what was there and is not the same."""
    same = lambda one, other: one is other or (isinstance(one, tuple) and one == other)
    name = lambda key: key if isinstance(key, str) else key[-1]
    different = [key for key in before.keys() | after.keys() if not same(before.get(key), after.get(key))]
    new = {name(key) for key in different if before.get(key) is None}
    return new, {name(key) for key in different} - new
'''

REGISTERED = """
import sys
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data.audio import audio_utils
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
kinds = {"leapformer_" + name for name in ("lm", "mlm", "nmt", "s2t", "simulst", "tts")}
assert kinds <= set(MODEL_REGISTRY), set(MODEL_REGISTRY)
assert {"label_smoothed_cross_entropy_with_length", "tacotron2_with_length"} <= set(CRITERION_REGISTRY)
assert "leapformer_classification" in TASK_REGISTRY
assert audio_utils.convert_waveform.__module__ == "leapformer_fairseq.compat.data"
assert sys.excepthook is sys.__excepthook__
"""


def run_python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def check(code: str, before: str = "import fairseq", cwd: str = ".") -> None:
    """That code raises nothing, in a process that has imported fairseq, PyTorch or nothing."""
    done = run_after(before, code, cwd) if before else run_python(code)
    assert done.returncode == 0, done.stderr


def test_an_import_sets_no_hook_and_imports_nothing():
    check(
        "import sys\n"
        "before = sys.excepthook, *sys.meta_path\n"
        "import leapformer_fairseq\n"
        "assert before == (sys.excepthook, *sys.meta_path)\n"
        "assert not {'torch', 'numpy', 'fairseq'} & set(sys.modules)\n"
        "import torch; allowed = torch.serialization.get_safe_globals()\n"
        "import leapformer_fairseq.attention\n"
        "assert before == (sys.excepthook, *sys.meta_path)\n"
        "assert allowed == torch.serialization.get_safe_globals()\n"
        "assert 'fairseq' not in sys.modules\n",
        before="",
    )


def test_an_import_leaves_fairseq_as_it_is_and_register_does_not():
    check(
        f"{SNAPSHOT}\n"
        "import fairseq, fairseq.trainer, fairseq.modules.quantization.scalar\n"
        "before = snapshot()\n"
        "import leapformer_fairseq, leapformer_fairseq.attention, leapformer_fairseq.simul\n"
        "assert changed(before, snapshot()) == (set(), set()), changed(before, snapshot())\n"
        "leapformer_fairseq.register()\n"
        "registered = snapshot()\n"
        "new, replaced = changed(before, registered)\n"
        "assert {'leapformer_lm', 'tacotron2_with_length', 'numpy.compat'} <= {name.strip(chr(39)) for name in new}\n"
        # No hook, no class of a task or model: what the patches say and nothing else.
        "patched = {'safe', 'convert_waveform', '_get_torchaudio_fbank', '_create_consumer', 'parse_args_and_arch'}\n"
        "patched |= {'call_main', 'all_gather_list', '_broadcast_object_slow', 'DistributedDataParallel'}\n"
        "patched |= {'load_checkpoint_to_cpu', 'get_config_from_yaml', 'get_waveform'}\n"
        "patched |= {'_no_repeat_ngram'}\n"
        "patched |= {'__enter__', '__exit__'}\n"  # of the Chunker, which reads the lines of preprocess
        "patched |= {'_step_internal', 'restore', 'load_checkpoint'}\n"  # of averages of the weights
        "patched |= {'emulate_int8_histogram', 'emulate_int8_tensor', 'get_layers', 'build_model'}\n"  # of noise, hydra
        "assert replaced == patched, replaced\n"
        "leapformer_fairseq.register()\n"
        "assert changed(registered, snapshot()) == (set(), set())\n"
    )


@pytest.mark.parametrize(
    "way",
    [
        "import leapformer_fairseq; leapformer_fairseq.register(); import fairseq",
        pytest.param("import fairseq, leapformer_fairseq; leapformer_fairseq.register()", marks=pytest.mark.full),
        pytest.param(
            "import leapformer_fairseq.modules, leapformer_fairseq; leapformer_fairseq.register()",
            marks=pytest.mark.full,
        ),
        f"import argparse, fairseq.utils as u; u.import_user_module(argparse.Namespace(user_dir={str(PLUGIN_DIR)!r}))",
    ],
)
def test_every_way_in_registers_everything(way):
    check(f"{way}\n{REGISTERED}", before="import torch" if way.startswith("import leapformer") else "import fairseq")


def test_simuleval_finds_an_agent_that_a_file_derives_from_ours(tmp_path):
    pytest.importorskip("simuleval")
    code = "from simuleval.utils import entrypoint\nfrom leapformer_fairseq.simul import LeapformerAgent\n"
    (tmp_path / "agent.py").write_text(code + "@entrypoint\nclass Mine(LeapformerAgent):\n    pass\n")
    check(
        f"from simuleval.utils.agent import import_file, EVALUATION_SYSTEM_LIST; import_file({str(tmp_path)!r} + "
        "'/agent.py'); assert len(EVALUATION_SYSTEM_LIST) == 1"
    )


def test_plugin_loaded_by_fairseq_from_any_folder(tmp_path):
    """As `fairseq-train --user-dir` does it, where the package is not importable by itself, under any name."""
    folder = tmp_path / "renamed"
    shutil.copytree(PLUGIN_DIR, folder, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import argparse, sys; from fairseq import utils\n"
        f"args = argparse.Namespace(user_dir={str(folder)!r})\n"
        "utils.import_user_module(args); utils.import_user_module(args)\n"
        f"{REGISTERED.replace('leapformer_fairseq.compat', 'renamed.compat')}\n"
        "assert 'leapformer_fairseq' not in sys.modules\n"
    )
    check(code, cwd="/")


def test_a_model_that_is_imported_alone_is_registered_with_a_patched_fairseq():
    check(
        "import leapformer_fairseq.models.lm\n"
        "from fairseq.models import MODEL_REGISTRY\n"
        "from fairseq.data.audio import audio_utils\n"
        "assert 'leapformer_lm' in MODEL_REGISTRY\n"
        "assert audio_utils.convert_waveform.__module__ == 'leapformer_fairseq.compat.data'\n"
    )


@pytest.mark.parametrize(
    "jobs",
    [
        "import leapformer_fairseq; jobs = [leapformer_fairseq.register] * 4",
        *(
            # fairseq itself cannot be imported for the first time by several threads in different ways.
            "import fairseq, importlib, leapformer_fairseq; jobs = [leapformer_fairseq.register, "
            f"lambda: importlib.import_module('leapformer_fairseq.{module}')] * 2"
            for module in ("models.lm", "tasks.classification", "criterions.with_length")
        ),
    ],
)
def test_threads_may_register_at_once(jobs):
    check(
        f"{jobs}\n"
        "import threading\n"
        "failed = []\n"
        "def run(job):\n"
        "    try:\n"
        "        job()\n"
        "    except BaseException as error:\n"
        "        failed.append(error)\n"
        "threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join(120) for thread in threads]\n"
        "assert not failed, failed\n"
        "assert not any(thread.is_alive() for thread in threads), 'they wait for each other'\n"
        f"{REGISTERED}",
        before="import fairseq" if "fairseq, importlib" in jobs else "import torch",
    )


def test_a_process_of_fairseq_per_gpu_knows_the_models(tmp_path):
    """It imports the main script, and with it this package, before fairseq reads --user-dir."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "from leapformer_fairseq.cli.main import main\n"
        "if __name__ == '__main__':\n"
        "    torch.cuda.device_count = lambda: 1\n"
        "    sys.exit(main(sys.argv[1:]))\n"
    )
    data = tmp_path / "data"
    data.mkdir()
    (data / "dict.txt").write_text("".join(f"w{i} 1\n" for i in range(8)))
    options = (
        f"train {data} --task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 8 --max-tokens 80 --cpu "
        f"--distributed-init-method file://{tmp_path}/meeting --distributed-world-size 1 --distributed-backend gloo "
        f"--save-dir {tmp_path}/save --optimizer adam --max-update 1"
    )
    arguments = f"import runpy, sys; sys.argv[:] = {[str(script), *options.split()]}"
    done = run_after("import fairseq", f"{arguments}; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert "LeapformerLanguageModel" in done.stderr, done.stderr[-3000:]  # built in the other process
    assert "Dataset not found: valid" in done.stderr


class TestOneLineErrors:
    FAIL = (
        "import sys; sys.argv[:1] = [{program!r}]\n"
        "import argparse, fairseq.utils\n"
        f"fairseq.utils.import_user_module(argparse.Namespace(user_dir={str(PLUGIN_DIR)!r}))\n"
        "from leapformer_fairseq.support.errors import LeapformerError\n"
        "raise {error}"
    )

    def errors(self, program: str, error: str) -> str:
        return run_after("import fairseq", self.FAIL.format(program=program, error=error)).stderr

    @pytest.mark.parametrize("program", ["/bin/fairseq-train", "/x/fairseq_cli/train.py"])
    def test_in_fairseqs_own_commands(self, program):
        assert self.errors(program, "LeapformerError('no such plan')").endswith("leapformer: error: no such plan\n")

    def test_a_defect_keeps_its_traceback(self):
        lines = self.errors("/bin/fairseq-train", "ZeroDivisionError('x')").splitlines()
        assert "Traceback (most recent call last):" in lines and lines[-1] == "ZeroDivisionError: x"

    @pytest.mark.parametrize("program", ["train.py", "/bin/my-program", "-c"])
    def test_not_in_a_program_of_somebody_else(self, program):
        found = self.errors(program, "LeapformerError('no such plan')")
        assert "Traceback" in found and "leapformer: error" not in found

    def test_in_simuleval(self, tmp_path):
        pytest.importorskip("simuleval")
        agent = "--agent-class leapformer_fairseq.simul.LeapformerAgent --checkpoint nowhere.pt --data-root nowhere"
        argv = ["/bin/simuleval", *agent.split(), "--output", str(tmp_path)]
        code = f"import sys; sys.argv[:] = {argv}; from simuleval.cli import main; main()"
        done = run_after("import fairseq", code)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert done.stderr.endswith("leapformer: error: no file nowhere.pt; check --checkpoint\n")

    def test_another_version_of_simuleval(self):
        code = (
            "import sys; sys.argv[0] = '/bin/simuleval'\n"
            "import importlib.metadata as metadata; metadata.version = lambda name: '1.0'\n"
            "from leapformer_fairseq.simul import LeapformerAgent"
        )
        done = run_after("import fairseq", code)
        assert "Traceback" not in done.stderr and "SimulEval 1.0 is installed" in done.stderr


class TestImportTimes:
    def test_help_needs_no_torch(self):
        code = (
            "import sys\n"
            "from leapformer_fairseq.cli.main import main\n"
            "try:\n"
            "    main(['--help'])\n"
            "except SystemExit:\n"
            "    sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'fairseq')))\n"
        )
        check(code, before="")

    @pytest.mark.parametrize(
        ("before", "code", "limit_s"),
        [
            ("", "import leapformer_fairseq.cli.main as cli; cli.build_parser(None).format_help()", 0.3),
            ("import torch", "import leapformer_fairseq.attention", 1.5),
        ],
    )
    def test_an_import_is_quick(self, before, code, limit_s):
        """In processor time, which other programs on this machine do not lengthen."""
        timed = f"import time; start = time.process_time()\n{code}\nprint(time.process_time() - start)"
        assert min(float(run_after(before, timed).stdout) for _ in range(3)) < limit_s
