"""Protocols: what the papers print, what is inherited, flaws as options, and bad files."""

from __future__ import annotations

import pytest
import yaml
from fairseq import options as fairseq_options

from leapformer_fairseq import register
from leapformer_fairseq.data.lra import prepare
from leapformer_fairseq.studies.lra import params, protocols
from leapformer_fairseq.studies.lra.protocols import NAMES, QUIRKS, load, words
from leapformer_fairseq.support.errors import LeapformerError
from tests.covering import in_turn

ALL = {(name, task, row) for name in NAMES for task in load(name).tasks for row in load(name).rows}
TASKS, ROWS = (sorted({one[at] for one in ALL}) for at in (1, 2))


def test_the_four():
    assert NAMES == ("corrected", "leapformer", "luna", "reduced")
    assert {name: len(load(name).seeds) for name in NAMES} == {"corrected": 3, "leapformer": 1, "luna": 5, "reduced": 3}
    assert load("corrected").quirks == ()
    assert load("reduced").quirks == ("black-is-padding",)


@pytest.mark.parametrize(
    ("task", "batch", "rate", "warmup", "updates", "factor"),
    [
        ("listops", 32, 1e-4, 1000, 20_000, 1),
        ("pathfinder", 128, 2e-4, 300, 50_000, 1),
        ("retrieval", 16, 2e-4, 800, 50_000, 2),
        ("text", 32, 2e-4, 100, 20_000, 2),
        ("image", 256, 1e-4, 200, 30_000, 1),
    ],
)
def test_the_table_of_appendix_a_10(task, batch, rate, warmup, updates, factor):
    for name in ("leapformer", "corrected"):
        found = load(name).options(task, "leap", ())
        assert (found["batch-size"], float(found["lr"]), found["warmup-updates"]) == (batch, rate, warmup)
        assert found["max-update"] == found["total-num-update"] == updates
        assert found["leap-factor"] == factor and found["dropout"] == 0.1


@in_turn(lambda row, name, task: (name, task, row) in ALL, row=ROWS, name=NAMES, task=TASKS)
def test_every_training_can_be_parsed_and_its_model_is_built(name, task, row):
    register()
    protocol = load(name)
    more = {"task": "leapformer_classification", "criterion": "leapformer_classification"}
    command = words({**protocol.options(task, row, protocol.quirks), **more})
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), ["-", *command])
    assert args.max_update == protocol.options(task, row, ())["max-update"]
    if name != "reduced" and (name, task) != ("luna", "listops"):  # whose 512 wide models take long
        assert params.count(protocol, task, row, protocol.quirks).total > 10_000


def test_the_models_of_luna_have_their_norms_after_the_blocks_and_those_of_tay_et_al_before():
    protocol = load("luna")
    for row in protocol.rows:
        model = params._model(protocol, "image", row, ())
        assert all(layer.normalize_before is not row.startswith("luna") for layer in model.encoder.layers), row
        if row.startswith("luna"):
            assert model.args.luna_projections == protocol.options("image", row, ())["luna-projections"] == "tied"
    assert params._model(load("corrected"), "image", "luna-16", ()).encoder.layers[0].normalize_before


def test_schedules_of_tay_et_al():
    for task, updates in (("image", 200 * (45_000 // 256)), ("pathfinder", 200 * (160_000 // 512))):
        found = load("luna").options(task, "softmax", ())
        assert found["max-update"] == found["lr-period-updates"] == updates
    for task, warmup in (("listops", 1000), ("text", 8000), ("retrieval", 8000)):
        found = load("luna").options(task, "softmax", ())
        assert found["warmup-updates"] == warmup and abs(found["lr"] - 0.05 * warmup**-0.5) < 1e-5


class TestQuirks:
    def test_each_changes_what_it_says_and_nothing_else(self):
        protocol = load("corrected")
        expected = {
            "mark-replaces-last": {"max-positions", "longest"},
            "first-dev-batches": {"valid-examples"},
            "softmax-recomputed": {"checkpoint-activations"},
            "linformer-frozen": {"freeze"},
            "padding-pooled": {"pooling", "padded-length"},
        }
        assert expected.keys() == QUIRKS.keys()
        for quirk, names in expected.items():
            changed = set()
            for task in protocol.tasks:
                for row in protocol.rows:
                    plain, flawed = (protocol.options(task, row, quirks) for quirks in ((), (quirk,)))
                    changed |= {name for name in flawed if flawed[name] != plain.get(name)}
            assert changed == names, quirk

    @pytest.mark.parametrize(
        ("quirk", "task", "row", "changes"),
        [
            ("softmax-recomputed", "text", "softmax", True),
            ("softmax-recomputed", "text", "leap", False),
            ("linformer-frozen", "text", "linformer", True),
            ("linformer-frozen", "text", "linformer-2", True),
            ("linformer-frozen", "text", "softmax", False),
            ("mark-replaces-last", "image", "leap", True),
            ("mark-replaces-last", "text", "leap", False),
        ],
    )
    def test_where_they_hold(self, quirk, task, row, changes):
        protocol = load("corrected")
        assert (protocol.options(task, row, (quirk,)) != protocol.options(task, row, ())) is changes

    @pytest.mark.parametrize(
        ("protocol", "positions"), [("leapformer", 1024), ("corrected", 1024), ("luna", 1024), ("reduced", 144)]
    )
    def test_the_mark_takes_the_place_of_one_pixel(self, protocol, positions):
        found = load(protocol).options("pathfinder", "softmax", ("mark-replaces-last",))
        assert found["max-positions"] == positions and found["longest"] == positions - 1

    def test_those_of_the_data(self):
        quirks = ("brackets-dropped", "padding-pooled", "dev-is-test")
        found = {task: protocols.data_quirks(task, quirks) for task in ("listops", "text", "image")}
        assert found == {"listops": ["brackets-dropped"], "text": ["dev-is-test"], "image": []}

    def test_the_corrected_protocol_has_room_for_the_mark(self):
        for task, longest in {"listops": 2000, "text": 4000, "image": 1024, "pathfinder": 1024}.items():
            found = load("corrected").options(task, "leap", ())
            positions = found.get("max-positions", {"listops": 2048, "text": 4096}.get(task))
            assert positions >= longest + 1

    def test_an_unknown_one(self):
        with pytest.raises(LeapformerError, match="--quirks brackets: choose from brackets-dropped.*padding-pooled"):
            protocols.check_quirks(["brackets"])


class TestFiles:
    def written(self, folder, **changes):
        found = {
            "title": "mine",
            "seeds": [7],
            "quirks": [],
            "train": {"max-update": 10},
            "tasks": {"listops": {"lr": 0.1}},
            "rows": {"softmax": {"title": "Softmax", "train": {"encoder-self-attention": "softmax"}}},
            **changes,
        }
        path = folder / "mine.yaml"
        path.write_text(yaml.safe_dump({name: value for name, value in found.items() if value != ""}))
        return str(path)

    def test_ones_own(self, tmp_path):
        protocol = load(self.written(tmp_path))
        assert protocol.name == "mine" and protocol.seeds == (7,)
        assert protocol.options("listops", "softmax", ())["validate-interval-updates"] == 1

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"rows": ""}, "KeyError: 'rows'; compare it with .*corrected.yaml"),
            ({"rows": {"softmax": {}}}, "KeyError: 'title'"),
            ({"tasks": {"chess": {}}}, "unknown task 'chess'; choose from listops"),
            ({"train": {}}, "listops has no max-update; say how long it trains"),
            ({"quirks": ["nothing"]}, "--quirks nothing: choose from"),
            ({"seeds": 3}, "TypeError"),
        ],
    )
    def test_bad_ones(self, tmp_path, changes, message):
        with pytest.raises(LeapformerError, match=message):
            load(self.written(tmp_path, **changes))

    def test_no_file(self, tmp_path):
        with pytest.raises(
            LeapformerError, match="--protocol lunar: .*choose from corrected, leapformer, luna, reduced"
        ):
            load("lunar")
        (tmp_path / "x.yaml").write_text("a: [")
        with pytest.raises(LeapformerError, match="ParserError"):
            load(str(tmp_path / "x.yaml"))


def test_words():
    assert words({"lr": 0.1, "share": True, "none": None, "off": False, "n": 0}) == [
        "--lr",
        "0.1",
        "--share",
        "--n",
        "0",
    ]


class TestParameters:
    """Totals of the specification, and which of the paper's percentages hold."""

    def shares(self, row):
        protocol = load("leapformer")
        return [params.count(protocol, task, row, protocol.quirks) for task in prepare.TASKS]

    def test_totals(self):
        found = {one.task: (one.total, one.body) for one in self.shares("softmax")}
        assert found == {
            "listops": (209_802, 76_682),
            "text": (370_562, 75_650),
            "retrieval": (395_138, 100_226),
            "pathfinder": (173_954, 75_650),
            "image": (158_602, 76_682),
        }

    def test_shares(self):
        """ "0.2 %" holds for width 1 without embeddings, or for width 2 of all; "1.5 %" does not hold for factor 1."""
        assert 0.17 < max(one.share_of_body for one in self.shares("leap-1")) < 0.18
        assert max(one.share for one in self.shares("leap-1")) < 0.09
        assert 0.17 < max(one.share for one in self.shares("leap-2")) < 0.18
        assert 2.7 < max(one.share for one in self.shares("leap")) < 2.8

    def test_the_control_has_1_05_times_the_parameters(self):
        for row, name in (("cosformer-total", "total"), ("cosformer-body", "body")):
            for one, other in zip(self.shares(row), self.shares("cosformer"), strict=True):
                assert 1.048 < getattr(one, name) / getattr(other, name) < 1.053
