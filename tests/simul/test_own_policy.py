"""Policies of users: from a file or an installed package, in every command, in the agent, over exported models."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from leapformer_fairseq.cli.list import policies
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.runtime.formats.streamlog import read_stream_log
from leapformer_fairseq.runtime.simul import Option, Policy, own, policy, register
from leapformer_fairseq.runtime.simul.exported import ExportedSystem
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, System, TranslationStream
from leapformer_fairseq.simul.loading import load_system, with_policy
from leapformer_fairseq.support.errors import LeapformerError
from tests.exported import speech as exported_speech
from tests.scripted import ScriptedSystem, policy_of, sound
from tests.simul.test_loading import data_root  # noqa: F401  (a fixture)
from tests.simul.test_policy import ScriptedDraft, play
from tests.simul.test_simulate import checkpoints, log, simulate, simuleval, test_set  # noqa: F401  (fixtures)
from tests.simul.test_talks import NAMES, talk_set  # noqa: F401  (a fixture)

FILE = str(Path(__file__).parents[1] / "policies" / "confident.py")
CONFIDENT = ["--policy-file", FILE, "--policy", "confident"]
OPTIONS = DecodingOptions(max_len_b=12)


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    """What a test registers or loads is gone after it."""
    kept = [(registry, dict(registry)) for registry in (policy.POLICIES, policy.OPTIONS)]
    loaded = set(sys.modules)
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)
    for name in set(sys.modules) - loaded:
        if name.startswith("leapformer_own_"):
            del sys.modules[name]


def heard(stream: TranslationStream, samples: np.ndarray, size: int = 4000) -> list[list[int]]:
    """The tokens after each piece of audio."""
    found = []
    for start in range(0, len(samples), size):
        stream.push(samples[start : start + size])
        stream.advance(start + size >= len(samples))
        found.append(stream.engine.tokens)
    return found


# --------------------------------------------------------------------------------------------------- what it is given
def plainly(system: System, samples: np.ndarray, threshold: float) -> list[list[int]]:
    """What the example says, with nothing but an engine: `heard` of its stream."""
    stream = TranslationStream(system, OPTIONS)  # for steps of source
    stream.policy = Policy.__new__(Policy)
    stream.policy.write = lambda draft: None  # type: ignore[method-assign]
    engine, found = stream.engine, []
    for start in range(0, len(samples), 4000):
        stream.push(samples[start : start + 4000])
        while stream._read(final := start + 4000 >= len(samples)):
            while engine.n_tokens < OPTIONS.max_len_b:
                before = engine.snapshot()
                logits = engine.step(stream.n_states).numpy().astype(float)  # type: ignore[attr-defined]
                logits[list(system.forbidden)] = -np.inf
                share = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
                if share.argmax() == system.eos or share.max() <= threshold:
                    engine.restore(before)
                    break
                engine.commit(int(share.argmax()))
        while final and engine.n_tokens < OPTIONS.max_len_b:
            token = engine.best(stream.n_states, system.forbidden)
            if token == system.eos:
                break
            engine.commit(token)
        found.append(engine.tokens)
    return found


@pytest.mark.parametrize("model", ["causal", "whole"])
def test_the_example_writes_what_it_says(checkpoints, data_root, speech, model: str) -> None:  # noqa: F811
    own.load(FILE)
    system, delays = load_system(checkpoints[model], data_root, policy=PolicyOptions("offline")), set()
    for threshold in (0.0, 0.02, 0.05, 0.3, 1.0):
        this = with_policy(system, PolicyOptions("confident", threshold=threshold))
        found = heard(TranslationStream(this, OPTIONS), speech(1.7))
        assert found == plainly(system, speech(1.7), threshold)
        delays.add(tuple(map(len, found)))
    assert len(delays) >= 3, "the threshold matters"


def test_an_exported_model_knows_the_same_probabilities(speech) -> None:
    own.load(FILE)
    system, folder = exported_speech()
    seen = list[list[float]]()

    class Watched(policy.POLICIES["confident"]):  # type: ignore[name-defined,misc]
        def write(self, draft: Any) -> None:
            seen[-1] += [token.probability for token in draft.continuation()]
            super().write(draft)

    policy.POLICIES["confident"] = Watched
    for threshold in (0.0, 0.05, 0.1, 1.0):
        chosen, found = PolicyOptions("confident", threshold=threshold), []
        for this in (with_policy(system, chosen), ExportedSystem.load(folder.path, chosen)):
            seen.append([])
            found.append(heard(TranslationStream(this, OPTIONS), speech(1.87, 3)))
        assert found[0] == found[1] and found[0][-1]
        np.testing.assert_allclose(seen[-1], seen[-2], rtol=1e-4)
    assert 0 < min(seen[-1]) < max(seen[-1]) < 1


def test_probabilities_and_attention_are_computed_for_who_asks(checkpoints, data_root, speech) -> None:  # noqa: F811
    """Only policies with attention let the decoder compose weights, and only beams ask for probabilities."""
    own.load(FILE)
    system, asked = load_system(checkpoints["causal"], data_root), dict[str, tuple[bool, bool]]()
    kinds = {**{name: 1 for name in policy.POLICIES}, "hold-n with a beam": 3}
    for name, beam in kinds.items():
        this = with_policy(system, policy_of(name.partition(" ")[0], k=2, align_frames=1))
        stream = TranslationStream(this, DecodingOptions(max_len_b=12, beam=beam))
        weights, probabilities = list[bool](), list[int]()
        stream.engine.step = _watched(stream.engine, weights)  # type: ignore[attr-defined,method-assign]
        with pytest.MonkeyPatch.context() as patch:
            kind = type(stream.engine)
            patch.setattr(kind, "log_probabilities", property(_counted(kind.log_probabilities.fget, probabilities)))
            heard(stream, speech(1.2))
        assert weights, "it was decoded"
        asked[name] = any(weights), bool(probabilities)
    assert asked == {
        **dict.fromkeys(kinds, (False, False)),
        **dict.fromkeys(("alignatt", "edatt"), (True, False)),
        **dict.fromkeys(("confident", "hold-n with a beam"), (False, True)),
    }


def _watched(engine: Any, weights: list[bool]) -> Any:
    step = engine.step

    def watched(visible: Any = None, layer: Any = None) -> Any:
        weights.append(layer is not None)
        return step(visible, layer)

    return watched


def _counted(getter: Any, calls: list[int]) -> Any:
    def counted(engine: Any) -> Any:
        compute = getter(engine)

        def counts() -> Any:
            calls.append(1)
            return compute()

        return counts

    return counted


def test_attention_that_was_not_declared_is_one_line(speech) -> None:
    @register("curious")
    class Curious(Policy):
        def write(self, draft: Any) -> None:
            draft.write_while(lambda token: token.attention.max() < 1)

    with pytest.raises(LeapformerError, match="policy 'curious'.*declare `attends = True` in the policy"):
        heard(TranslationStream(ScriptedSystem(PolicyOptions("curious")), OPTIONS), sound(3.0))


def test_the_second_example_waits_for_agreement_and_for_what_is_being_said() -> None:
    own.load(str(Path(FILE).with_name("steady.py")))
    draft = ScriptedDraft([[1, 2, 3, 5], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]], states=[0, 1, 6, 7])
    play(PolicyOptions("steady", newest=2).make(), draft)  # 4, 8, 12, 16 states
    assert draft.tokens == [1, 2, 3, 4] and draft.steps_of == [2, 2, 3, 3]


# ------------------------------------------------------------------------------------------------------- every command
def test_simulate_the_agent_and_an_interrupted_run(simulate, checkpoints, data_root, test_set, tmp_path) -> None:  # noqa: F811
    options = [*CONFIDENT, "--source-segment-size", "40", "--max-len-b", "12", "--threshold", "0"]
    assert simulate(tmp_path / "ours", *options) == 0
    assert sum(len(set(entry["delays"])) > 1 for entry in log(tmp_path / "ours")) >= 2  # it wrote while it listened
    simuleval(tmp_path / "theirs", checkpoints["causal"], data_root, *test_set, *options)
    assert log(tmp_path / "ours") == log(tmp_path / "theirs")
    assert simulate(tmp_path / "ours", *options) == 0  # nothing to do
    assert simulate(tmp_path / "ours", *options[:-1], "0.1") == 2


@pytest.mark.full
def test_other_processes_load_the_file_too(simulate, tmp_path) -> None:  # noqa: F811
    options = [*CONFIDENT, "--max-len-b", "12", "--threshold", "0"]
    assert simulate(tmp_path / "jobs", *options, "--jobs", "2") == simulate(tmp_path / "ours", *options) == 0
    assert log(tmp_path / "ours") == log(tmp_path / "jobs")


def test_a_changed_file_is_another_simulation(simulate, tmp_path, capsys) -> None:  # noqa: F811
    mine = tmp_path / "mine.py"
    mine.write_text(Path(FILE).read_text())
    options = ["--policy-file", str(mine), "--policy", "confident", "--max-len-b", "2"]
    assert simulate(tmp_path / "out", *options) == 0
    mine.write_text(mine.read_text() + "\n# another rule\n")
    assert simulate(tmp_path / "out", *options) == 2
    assert "holds a simulation with another policy_file in options" in capsys.readouterr().err


def test_a_curve_over_the_option_of_a_policy(checkpoints, data_root, test_set, tmp_path) -> None:  # noqa: F811
    fixed = ["--checkpoints", str(checkpoints["causal"]), "--data-root", str(data_root), *test_set]
    fixed += ["--out", str(tmp_path / "curve"), "--limit", "2", "--max-len-b", "6", "--policy-file", FILE]
    assert main(["curve", *fixed, "--policies", "confident wait-k", "--threshold", "0.02 0.3", "--k", "2"]) == 0
    rows = json.loads((tmp_path / "curve" / "curve.json").read_text())["rows"]
    assert [(row["policy"], row["numbers"]) for row in rows] == [
        ("confident", {"threshold": 0.02}), ("confident", {"threshold": 0.3}), ("wait-k", {"k": 2})
    ]  # fmt: skip
    assert rows[0]["AL"] < rows[1]["AL"]
    assert f"--policy-file {FILE}" in (tmp_path / "curve" / "commands.sh").read_text()


def test_a_curve_over_a_flag(checkpoints, data_root, test_set, tmp_path, capsys) -> None:  # noqa: F811
    options = "Option('brave', False, ''), Option('eager', True, '')"
    (tmp_path / "mine.py").write_text(f"{BEGIN}register('mine', {options})(Mine)\n")
    fixed = ["--checkpoints", str(checkpoints["causal"]), "--data-root", str(data_root), *test_set, "--dry-run"]
    fixed += ["--policies", "mine", "--policy-file", str(tmp_path / "mine.py"), "--out", str(tmp_path / "curve")]
    for given, count in ([], 1), (["--brave", "true false"], 2), (["--brave", "true", "--eager", "true false"], 2):
        assert main(["curve", *fixed, *given]) == 0
        assert f"{count} runs to do" in capsys.readouterr().out


def test_a_limit_takes_the_first_utterances(simulate, tmp_path) -> None:  # noqa: F811
    assert simulate(tmp_path / "out", "--policy", "offline", "--max-len-b", "2", "--limit", "2") == 0
    assert [entry["index"] for entry in log(tmp_path / "out")] == [0, 1]
    assert simulate(tmp_path / "none", "--limit", "0") == 2


def test_stream_with_an_exported_model_alone(speech, tmp_path, capsys) -> None:
    _, folder = exported_speech()
    soundfile.write(tmp_path / "talk.wav", speech(3.0), 16_000)
    texts = []
    for threshold in ("0", "1"):
        words = ["stream", str(tmp_path / "talk.wav"), "--checkpoint", str(folder.path), *CONFIDENT]
        assert main([*words, "--threshold", threshold, "--json", "--no-drafts", "--unit", "char"]) == 0
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        texts.append([(event["text"], event["audio_s"]) for event in events if event.get("text")])
    assert texts[0][0][1] < texts[1][0][1], "who is never sure writes at the end"


def test_a_live_server_writes_with_it_and_says_in_one_line_that_it_failed(make_system, speech, caplog) -> None:
    pytest.importorskip("websockets", reason="the extra live")
    from tests.simul import test_serve as serving

    own.load(FILE)

    @register("failing")
    class Failing(Policy):
        def write(self, draft: Any) -> None:
            draft.write_nex()

    samples, confident = speech(1.2), make_system(policy=PolicyOptions("confident", threshold=0.1))
    systems = [confident, make_system(policy=PolicyOptions("failing"))]
    expected = serving.alone(lambda _: Session(confident, OPTIONS), samples)
    assert len({event.audio_s for event in expected if event.text}) > 1, "it writes while it listens"

    async def body() -> None:
        async with serving.running(lambda drafts: Session(systems.pop(0), OPTIONS, drafts=drafts)) as server:
            async with server.connect() as client:
                assert serving.shown(await serving.speak(client, samples)) == serving.final(expected)
            async with server.connect() as client:
                assert "did you mean write_next" in (await serving.speak(client, samples))[-1]["error"]

    serving.test(body())
    assert "a talk failed: policy 'failing': " in caplog.text and "Traceback" not in caplog.text


@pytest.mark.full
def test_the_command_serve_takes_the_file(speech) -> None:
    pytest.importorskip("websockets", reason="the extra live")
    from tests.simul import test_serve as serving

    words = ["serve", "--checkpoint", str(exported_speech()[1].path), *CONFIDENT, "--threshold", "0", "--unit", "char"]
    command = [sys.executable, "-m", "leapformer_fairseq.cli.main", *words, "--port", "0", "--no-talks"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            (port,) = re.findall(r"127\.0\.0\.1:(\d+)", process.stdout.readline())  # type: ignore[union-attr]

            async def body() -> None:
                async with serving.connect(f"ws://127.0.0.1:{port}/", proxy=None) as client:
                    messages = await serving.speak(client, speech(3.0))
                events = [event for message in messages for event in message.get("events", [])]
                assert min(event["audio_s"] for event in events if event["final"] and event["text"]) < 3.0

            serving.test(body())
        finally:
            process.terminate()
    assert process.returncode == 0


TALKS = [
    ["--threshold", "0.02", "--jobs", "2"],
    ["--threshold", "0.02", "--history", "window", "--max-seconds", "3"],
    ["--threshold", "0.02", "--segment", "tokens", "--segment-tokens", "4", "--carry", "encoder", "--drafts"],
]


@pytest.mark.full
@pytest.mark.parametrize("way", TALKS)
def test_talks_are_what_stream_writes_of_them(checkpoints, data_root, talk_set, tmp_path, way) -> None:  # noqa: F811
    system = ["--checkpoint", str(checkpoints["causal"]), "--data-root", str(data_root)]
    options = [*CONFIDENT, *way, "--max-len-b", "9"]
    talks = ["--talks", str(talk_set), "--out", str(tmp_path / "out"), "--source-segment-size", "100"]
    assert main(["simulate", *system, *talks, *options]) == 0
    apart = [word for word in options if word != "--drafts"]
    apart = apart[: apart.index("--jobs")] + ["--max-len-b", "9"] if "--jobs" in apart else apart
    for name in NAMES:
        recording = ["stream", str(talk_set / f"wav/{name}.wav"), *system, *apart, "--log", str(tmp_path / name)]
        assert main([*recording, *(["--json"] if "--drafts" in way else [])]) == 0
        (theirs,) = read_stream_log(tmp_path / name, "word")
        (ours,) = read_stream_log(tmp_path / f"out/logs/{name}.jsonl", "word")
        assert (ours.units, ours.delays) == (theirs.units, theirs.delays) and ours.delays[0] < 2000


@pytest.mark.full
def test_a_curve_of_talks(checkpoints, data_root, talk_set, tmp_path) -> None:  # noqa: F811
    fixed = ["--checkpoints", str(checkpoints["causal"]), "--data-root", str(data_root), "--talks", str(talk_set)]
    fixed += ["--out", str(tmp_path / "curve"), "--max-len-b", "9", "--policy-file", FILE]
    assert main(["curve", *fixed, "--policies", "confident", "--threshold", "0.02 0.3"]) == 0
    rows = json.loads((tmp_path / "curve" / "curve.json").read_text())["rows"]
    assert [row["numbers"] for row in rows] == [{"threshold": 0.02}, {"threshold": 0.3}]


def test_the_program_of_the_page_runs(speech, tmp_path, monkeypatch, capsys) -> None:
    page = (Path(FILE).parents[2] / "docs" / "adding_a_policy.md").read_text(encoding="utf-8")
    (tmp_path / "exported").symlink_to(exported_speech()[1].path)
    (tmp_path / "confident.py").symlink_to(FILE)
    soundfile.write(tmp_path / "talk.wav", speech(1.2), 16_000)
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[-1], {"__name__": "program"})
    assert capsys.readouterr().out.splitlines()[-1].startswith("1.2 ")


def test_simulstream_takes_it_by_its_configuration() -> None:
    pytest.importorskip("simulstream")
    from leapformer_fairseq.runtime.simul.options import policy_options
    from leapformer_fairseq.simul.simulstream_processor import _arguments

    given = {"checkpoint": "x", "policy": "confident", "policy_file": FILE, "threshold": 0.3}
    assert policy_options(_arguments(SimpleNamespace(**given))) == PolicyOptions("confident", threshold=0.3)


def test_a_mistyped_option_is_recognised(capsys) -> None:
    assert main(["stream", "-", "--checkpoint", "x", *CONFIDENT, "--treshold", "0.5"]) == 2
    assert "--treshold 0.5 (did you mean --threshold" in capsys.readouterr().err


def test_help_and_list_tell_of_it(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", *CONFIDENT, "--help"])
    assert "--threshold X" in capsys.readouterr().out
    assert main(["list", "policies", "--policy-file", FILE]) == 0
    printed = capsys.readouterr().out
    assert (
        "confident\n  Write while the probability" in printed
        and "--threshold (float, at least 0, at most 1; default: 0.8)" in printed
    )
    assert main(["list", "confident", "--policy-file", FILE]) == 0 and capsys.readouterr().out in printed
    assert main(["list", "confidant", "--policy-file", FILE]) == 2
    assert "did you mean confident? " in capsys.readouterr().err


def test_a_class_without_docstring_is_not_described_by_that_of_its_base(tmp_path, capsys) -> None:
    (tmp_path / "mine.py").write_text(f"{BEGIN}register('mine')(Mine)\n")
    assert main(["list", "mine", "--policy-file", str(tmp_path / "mine.py")]) == 0
    assert capsys.readouterr().out == "mine\n  (its class has no docstring)\n"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A package as `pip install` leaves it, with a policy `brought`, and two entry points that are wrong."""
    (tmp_path / "brought.py").write_text(Path(FILE).read_text().replace('"confident"', '"brought"'))
    (tmp_path / "brought-1.0.dist-info").mkdir()
    (tmp_path / "brought-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (tmp_path / "brought-1.0.dist-info" / "entry_points.txt").write_text(
        f"[{policy.ENTRY_POINTS}]\nbrought = brought\nabsent = brought\ngone = brought.nothing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("brought", None)


def test_an_installed_package_brings_a_policy(installed, capsys) -> None:
    assert [option.flag for option in own.options(["stream", "--policy", "brought"])] == ["--threshold"]
    assert PolicyOptions("brought", threshold=0.5).make().chosen.threshold == 0.5
    for name, reason in (("absent", "brought registers none of this name"), ("gone", "No module named")):
        with pytest.raises(LeapformerError, match=f"policy '{name}' of an installed package: .*{reason}"):
            PolicyOptions(name)


def test_list_shows_policies_of_installed_packages_and_those_that_fail(installed, capsys) -> None:
    assert main(["list", "brought"]) == main(["list", "policies"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("brought\n  Write while the probability") == 2 and "gone\n  policy 'gone' of an" in printed
    assert main(["list", "gone"]) == 2
    assert "error" in policies()["gone"] and policies()["brought"]["options"][0]["flag"] == "--threshold"


def test_a_folder_is_a_package(tmp_path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "rule.py").write_text(Path(FILE).read_text())
    (folder / "__init__.py").write_text("from .rule import Confident\n")
    own.load(str(folder))
    own.load(str(folder))  # once in a process
    assert PolicyOptions("confident").threshold == 0.8
    before = own.digest([str(folder)])
    (folder / "rule.py").write_text("")
    assert own.digest([str(folder)]) != before


# ------------------------------------------------------------------------------------------------------------ mistakes
BEGIN = """import numpy as np
from leapformer_fairseq.runtime.simul import Option, Policy, register
class Mine(Policy):
    def write(self, draft):
        pass
"""
MISTAKES = {
    "def :": ["mine.py, line 6: SyntaxError: invalid syntax"],
    "import nothing_such": ["mine.py, line 6: ModuleNotFoundError: No module named 'nothing_such'"],
    "1 / 0": ["mine.py, line 6: ZeroDivisionError: division by zero"],
    "raise SystemExit('enough')": ["mine.py, line 6: SystemExit: enough"],
    "register('wait-k')(Mine)": [
        "mine.py, line 6: policy 'wait-k' is already registered by",
        "policies.py, line 14; rename it",
    ],
    "register('mine')(Mine); register('mine')(Mine)": ["already registered by", "mine.py, line 3; rename it"],
    "register('mine', Option('hold', 2, 'hold-n: tokens at the end that are held back', least=0))(Mine)": [
        "mine.py, line 6: option 'hold' of policy 'mine' has default 2, but 3 in its first declaration (",
        "policies.py, line 48); declare it identically or rename it",
    ],
    "register('mine', Option('json', 3, ''))(Mine)": ["--json: the command has such an option"],
    "register('other')(Mine)": ["--policy 'mine': choose from wait-k", ", offline, other, or give the file that"],
    "register('mine', Option('sure', 0.5, '', most=1))(Mine)": ["--sure 2.0: give at most 1"],
    "register('mine')(type('Less', (Policy,), {}))": [
        "mine.py, line 6: policy 'mine': class Less has no method write; define it as in Policy"
    ],
    "register('mine')(type('Less', (Policy,), {'wirte': None}))": ["no method write; did you mean wirte? define it"],
    "register('my-rule')(dict)": ["policy 'my-rule': dict is no Policy; write `class MyRule(Policy)`"],
    "register('mine', Option('often', 3, ''))(type('Less', (Mine,), {'__init__': lambda self: None}))": [
        "mine.py, line 6: policy 'mine': __init__ of class Less does not fit (got an unexpected keyword",
        "; write `def __init__(self, **options)`, and `super().__init__(**options)` in it",
    ],
    "register('my rule')(Mine)": ["mine.py, line 6: policy 'my rule': commands cannot read this name; take letters"],
    "register('mine', Option('least-share', 0.5, ''))(Mine)": [
        "mine.py, line 6: option 'least-share' of policy 'mine' is no Python name; write 'least_share', whose flag has"
    ],
    "register('mine', Option('often', None, ''))(Mine)": [
        "mine.py, line 6: option 'often' of policy 'mine': its default None does not tell what a flag takes; give a "
    ],
    "register('mine', Option('often', (1, 2), ''))(Mine)": ["its default (1, 2) does not tell what a flag takes"],
    "register('mine', Option('often', 3, '', most=1))(Mine)": [
        "mine.py, line 6: option 'often' of policy 'mine': its default is refused: --often 3: give at most 1"
    ],
    "register('mine', 'often')(Mine)": [
        "mine.py, line 6: policy 'mine': 'often' is no Option; write Option(NAME, DEFAULT, HELP)"
    ],
    "register(Mine)": ['mine.py, line 6: @register above class Mine has no name; write @register("mine")'],
    "Mine.name = 'mine'": ["mine.py registers no policy; write @register(NAME) above its class"],
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line(line: str, tmp_path, capsys) -> None:
    (tmp_path / "mine.py").write_text(f"{BEGIN}{line}\n")
    (tmp_path / "talk.wav").write_bytes(b"")
    soundfile.write(tmp_path / "talk.wav", np.zeros(16_000), 16_000)
    _, folder = exported_speech()
    words = ["stream", str(tmp_path / "talk.wav"), "--checkpoint", str(folder.path), "--policy", "mine"]
    words += ["--policy-file", str(tmp_path / "mine.py"), *(["--sure", "2"] if "sure" in line else [])]
    assert main(words) == 2
    (found,) = capsys.readouterr().err.strip().splitlines()
    for part in MISTAKES[line]:
        assert part in found


def test_a_file_that_failed_can_be_mended_and_loaded(tmp_path) -> None:
    """In a notebook: nothing of the first attempt is left, of a folder's other files neither."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "rule.py").write_text(f"{BEGIN}register('mine', Option('often', 3, ''))(Mine)\n")
    (folder / "__init__.py").write_text("from . import rule\n1 / 0\n")
    with pytest.raises(LeapformerError, match="__init__.py, line 2: ZeroDivisionError"):
        own.load(str(folder))
    assert "mine" not in policy.POLICIES and "often" not in policy.OPTIONS
    (folder / "__init__.py").write_text("from . import rule")
    own.load(str(folder))
    assert PolicyOptions("mine").often == 3


WRITING = {
    "draft.write_nex()": ["line 10: AttributeError: ", "has no attribute 'write_nex'; did you mean write_next"],
    "draft.shout()": ["'shout'; it has commit, continuation, hypotheses, n_states, n_steps, n_tokens, tokens, "],
    "self.chosen.treshold": ["has no attribute 'treshold'; did you mean threshold?"],
    "draft.commit([10**6])": ["line 10: commit of 1000000, which is no token of a text; give ids from 0 to "],
    "draft.commit([-1])": ["commit of -1, "],
    "draft.commit([2])": ["commit of 2, ", "but not 0, 1, 2"],  # the end of a sentence
    "draft.commit([5] * 201)": ["line 10: commit of token ", "allow no more than ", "; commit what continuation()"],
    "draft.commit(['w'])": ["commit of 'w', "],
    "draft.write_while(lambda token: -(np.exp(token.log_probabilities) * token.log_probabilities).sum() < 9)": [
        "line 10: FloatingPointError: invalid value encountered in multiply", "-inf: leave them out"
    ],
    "draft.write_while(lambda token: token.probability)": ["line 10: accepts returned 0.", "neither true nor false"],
    "draft.write_while(lambda token: token.probability * np.nan)": ["accepts returned nan, ", "; compare it, as in"],
    "draft.write_while(lambda token: print())": ["accepts returned None, "],
    "return draft.n_steps > 3": ["mine.py, line 7: write returned False, which has no effect; call methods"],
    "yield": ["write returned <generator"],
}  # fmt: skip


def said_of(text: str, tmp_path: Path, samples: np.ndarray) -> str:
    """What is said of a file with a policy `mine` when it writes."""
    (tmp_path / "mine.py").write_text(text)
    own.load(str(tmp_path / "mine.py"))
    system = ExportedSystem.load(exported_speech()[1].path, PolicyOptions("mine"))
    with pytest.raises(LeapformerError, match=r"^policy 'mine': .*mine.py, line \d+: ") as error:
        heard(TranslationStream(system, OPTIONS), samples)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("line", WRITING)
def test_an_error_in_a_policy_names_its_place(line: str, speech, tmp_path) -> None:
    begin = (
        f"{BEGIN}\n@register('mine', Option('threshold', 0.5, ''))\nclass Other(Policy):\n    def write(self, draft):\n"
    )
    found = said_of(f"{begin}        {line}\n", tmp_path, speech(1.5))
    for part in WRITING[line]:
        assert part in found


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("def write(self): pass", "mine.py, line 7: TypeError: Other.write() takes 1"),
        ("def __init__(self, **_): 1 / 0\n    write = Mine.write", "mine.py, line 9: ZeroDivisionError"),
    ],
)
def test_methods_that_cannot_be_called(method: str, part: str, speech, tmp_path) -> None:
    begin = f"{BEGIN}\n@register('mine', Option('threshold', 0.5, ''))\nclass Other(Policy):\n"
    assert part in said_of(f"{begin}    {method}\n", tmp_path, speech(1.5))


def test_a_file_named_from_its_own_folder_is_found_in_messages(speech, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "mine.py, line 8: ZeroDivisionError" in said_of(
        f"{BEGIN}@register('mine')\nclass Other(Policy):\n    def write(self, draft): 1 / 0\n",
        Path(),
        speech(1.5),
    )


def test_the_entropy_of_the_page_leaves_forbidden_tokens_out() -> None:
    page = (Path(FILE).parents[2] / "docs" / "adding_a_policy.md").read_text(encoding="utf-8")
    lines = re.findall(r"`(-\(np\.exp.*?)`", f"{page}{policy.Token.log_probabilities.func.__doc__}")
    assert len(lines) == 2
    probabilities = np.array([0.5, 0.25, 0.25])
    with np.errstate(all="raise"):
        for line in lines:
            for kind in (np.float32, np.float64):
                x = np.log(np.r_[probabilities]).astype(kind)
                assert eval(line, {"np": np, "x": np.r_[x, -np.inf]}) == pytest.approx(1.5 * np.log(2))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--policy", "wait-k", "--policy-file", FILE, "--threshold", "0.5"],
            "--threshold 0.5 is for the policy confident",
        ),
        (["--policy", "hold-n", "--waitk-lagging", "3"], "--waitk-lagging 3 is for the policy wait-k, not for hold-n"),
        (
            ["--policy", "confident", "--threshold", "0.5"],
            "or give the file that registers 'confident' by --policy-file",
        ),
    ],
)
def test_an_option_without_its_policy_is_refused(words: list[str], reason: str, capsys) -> None:
    assert main(["stream", "-", "--checkpoint", str(exported_speech()[1].path), *words]) == 2
    assert reason in capsys.readouterr().err


def test_files_that_are_none(tmp_path, capsys) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text("")
    for name, reason in (("gone.py", "no file"), ("folder", "__init__.py; give"), ("text.txt", "no Python file")):
        assert main(["stream", "-", "--checkpoint", "x", "--policy-file", str(tmp_path / name)]) == 2
        assert reason in capsys.readouterr().err


def test_data_never_names_code(tmp_path) -> None:
    """What a folder says of policies is not read: only a command line names files."""
    _, folder = exported_speech()
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')\n")
    for file in folder.path.iterdir():
        (tmp_path / file.name).symlink_to(file)
    assert ExportedSystem.load(folder.path, PolicyOptions("offline")).policy.name == "offline"
    with pytest.raises(LeapformerError, match="choose from wait-k"):
        PolicyOptions(str(tmp_path / "evil"))


def test_an_option_of_another_type_is_refused() -> None:
    @register("typed", Option("often", None, "typed: how often", kind=int, least=1))
    class Typed(Policy):
        def write(self, draft: Any) -> None:
            pass

    assert PolicyOptions("typed").often is None and PolicyOptions("typed", often=3).often == 3
    with pytest.raises(LeapformerError, match="--often 'x': give a number"):
        PolicyOptions("typed", often="x")
