"""Averaging checkpoints: the right files, the right mean, and clear errors."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.models.averaging import (
    average_checkpoints,
    average_parameters,
    best_checkpoints,
    describe_checkpoint,
    last_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from leapformer_fairseq.support.errors import LeapformerError


def write(path: Path, value: float = 0.0, maximize: bool = False, **more) -> Path:
    """A file like fairseq's, with what weights_only refuses unless it is allowed."""
    state = {
        "args": None,
        "cfg": {"model": Namespace(arch="x"), "checkpoint": {"maximize_best_checkpoint_metric": maximize}},
        "model": {"weight": torch.full((2, 3), float(value)), "version": torch.tensor(int(value)), **more},
        "last_optimizer_state": {"state": torch.ones(1000)},
        "optimizer_history": [{"num_updates": int(value)}],
        "extra_state": {"metrics": np.arange(3)},
    }
    torch.save(state, path)
    return path


class TestMean:
    def test_known_tensors(self):
        models = {name: {"w": torch.tensor([value, 1.0])} for name, value in (("a", 1.0), ("b", 2.0), ("c", 6.0))}
        averaged = average_parameters(models)["w"]
        assert averaged.dtype == torch.float32
        torch.testing.assert_close(averaged, torch.tensor([3.0, 1.0]))

    def test_half_precision_is_summed_in_double(self):
        models = {str(n): {"w": torch.tensor([60000.0, 0.1], dtype=torch.float16)} for n in range(10)}
        averaged = average_parameters(models)["w"]
        assert averaged.dtype == torch.float16
        assert torch.equal(averaged, models["0"]["w"])

    def test_sum_keeps_small_differences(self):
        values = {"a": 2.0**25, "b": 1.0, "c": -(2.0**25)}  # the 1 is lost when summed in single precision
        averaged = average_parameters({name: {"w": torch.tensor(value)} for name, value in values.items()})
        assert averaged["w"].item() == pytest.approx(1 / 3)

    def test_integers_are_the_last_ones(self):
        models = {name: {"steps": torch.tensor(value)} for name, value in (("a", 3), ("b", 8))}
        assert average_parameters(models)["steps"].item() == 8
        assert average_parameters(models)["steps"].dtype == torch.int64

    def test_shared_parameters_stay_shared(self):
        def tied(value: float) -> dict[str, torch.Tensor]:
            table = torch.full((4, 2), value)
            return {"embed": table, "output": table, "row": table[1]}

        averaged = average_parameters({"a": tied(1.0), "b": tied(2.0)})
        assert averaged["embed"] is averaged["output"]
        torch.testing.assert_close(averaged["row"], torch.full((2,), 1.5))

    def test_inputs_are_left_alone(self):
        models = {"a": {"w": torch.ones(2)}, "b": {"w": torch.zeros(2)}}
        average_parameters(models)["w"].fill_(9)
        assert torch.equal(models["b"]["w"], torch.zeros(2))

    def test_one_model_is_itself(self):
        assert torch.equal(average_parameters({"a": {"w": torch.arange(3.0)}})["w"], torch.arange(3.0))

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ({"v": torch.ones(2)}, "v is only in one of a and b"),
            ({"w": torch.ones(3)}, r"w is \(2,\) in a but \(3,\) in b"),
        ],
    )
    def test_different_models(self, other, message):
        with pytest.raises(LeapformerError, match=message):
            average_parameters({"a": {"w": torch.ones(2)}, "b": other})


class TestChoice:
    def test_last_epochs_by_number(self, tmp_path):
        for name in ("checkpoint2", "checkpoint10", "checkpoint9", "checkpoint_10_500", "checkpoint_last"):
            write(tmp_path / f"{name}.pt")
        assert [path.name for path in last_checkpoints(tmp_path, 2)] == ["checkpoint9.pt", "checkpoint10.pt"]

    def test_updates_where_no_epoch_ended(self, tmp_path):
        for name in ("checkpoint_1_900", "checkpoint_2_1000", "checkpoint_last"):
            write(tmp_path / f"{name}.pt")
        assert [path.name for path in last_checkpoints(tmp_path, 1)] == ["checkpoint_2_1000.pt"]

    @pytest.mark.parametrize(("maximize", "best"), [(False, ["3.10", "2.95"]), (True, ["3.10", "12.01"])])
    def test_best_is_what_training_took_for_it(self, tmp_path, maximize, best):
        for value in ("12.01", "2.95", "3.10"):
            write(tmp_path / f"checkpoint.best_loss_{value}.pt", maximize=maximize)
        assert [path.name for path in best_checkpoints(tmp_path, 2)] == [f"checkpoint.best_loss_{v}.pt" for v in best]

    def test_too_few(self, tmp_path):
        write(tmp_path / "checkpoint1.pt")
        with pytest.raises(LeapformerError, match="holds 1 such checkpoints, --last asks for 2; .*or give --last 1"):
            last_checkpoints(tmp_path, 2)
        with pytest.raises(LeapformerError, match="--best is 0"):
            best_checkpoints(tmp_path, 0)
        with pytest.raises(LeapformerError, match="no folder .*nowhere"):
            last_checkpoints(tmp_path / "nowhere", 2)


class TestFiles:
    def test_configuration_is_kept_and_optimizer_state_is_not(self, tmp_path):
        paths = [write(tmp_path / f"checkpoint{n}.pt", value=n) for n in (1, 2)]
        averaged = average_checkpoints(paths)
        assert averaged["cfg"]["model"].arch == "x"
        assert averaged["last_optimizer_state"] is None
        assert averaged["optimizer_history"] == [{"num_updates": 2}]
        assert averaged["averaged"] == ["checkpoint1.pt", "checkpoint2.pt"]
        torch.testing.assert_close(averaged["model"]["weight"], torch.full((2, 3), 1.5))

    def test_saved_file_can_be_loaded(self, tmp_path):
        paths = [write(tmp_path / f"checkpoint{n}.pt", value=n) for n in (1, 2)]
        save_checkpoint(average_checkpoints(paths), tmp_path / "new" / "average.pt")
        assert load_checkpoint(tmp_path / "new" / "average.pt")["model"]["version"].item() == 2
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["average.pt"]

    def test_harmful_file_is_refused(self, tmp_path):
        torch.save({"model": {"w": Path}}, tmp_path / "checkpoint1.pt")
        with pytest.raises(LeapformerError, match="cannot be read as a checkpoint"):
            load_checkpoint(tmp_path / "checkpoint1.pt")

    @pytest.mark.parametrize("content", [b"", b"no checkpoint"])
    def test_broken_file_is_named(self, tmp_path, content):
        (tmp_path / "checkpoint1.pt").write_bytes(content)
        with pytest.raises(LeapformerError, match="checkpoint1.pt cannot be read"):
            average_checkpoints([tmp_path / "checkpoint1.pt"])

    def test_file_without_model(self, tmp_path):
        torch.save({"cfg": None}, tmp_path / "checkpoint1.pt")
        with pytest.raises(LeapformerError, match="holds no model"):
            average_checkpoints([tmp_path / "checkpoint1.pt"])

    def test_command(self, tmp_path, capsys):
        for n in (1, 2, 3):
            write(tmp_path / f"checkpoint{n}.pt", value=n)
        arguments = ["average", "--inputs", str(tmp_path), "--output", str(tmp_path / "average.pt")]
        assert main([*arguments, "--last", "2"]) == 0
        assert "average of checkpoint2.pt, checkpoint3.pt" in capsys.readouterr().out
        assert load_checkpoint(tmp_path / "average.pt")["model"]["weight"][0, 0] == 2.5
        assert main([*arguments, "--last", "4"]) == 2


class TestParameters:
    @pytest.mark.parametrize("copies", [False, True], ids=["shared", "half-precision"])
    def test_embeddings_that_are_shared_count_once(self, copies, tmp_path):
        """A training in half precision saves them once for each of their names."""
        words, plain = torch.randn(5, 3), {"a.weight": torch.ones(3), "b.weight": torch.ones(3), "c": torch.zeros(2, 2)}
        tied = {f"{part}.embed": words.clone() if copies else words for part in ("encoder", "decoder", "output")}
        path = write(tmp_path / "checkpoint.pt", **tied, **plain, d=torch.zeros(2, 2), e=torch.randn(5, 3))
        assert describe_checkpoint(path)["parameters"] == 6 + 15 + 3 + 3 + 4 + 4 + 15


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({}, 9),
        ({"keep_interval_updates": 1}, 8),
        ({"keep_interval_updates": 1, "keep_interval_updates_pattern": 10}, 9),
        ({"keep_last_epochs": 1}, 8),
        ({"keep_best_checkpoints": 1}, 8),
        ({"keep_best_checkpoints": 1, "maximize_best_checkpoint_metric": True}, 8),
    ],
)
def test_what_a_killed_training_had_not_deleted_yet_is_deleted(more, left, tmp_path):
    """As fairseq does after the last checkpoint: the latest and the best stay."""
    from leapformer_fairseq.cli.fairseq_commands import _delete_old

    names = ["checkpoint_last", "checkpoint_best", "checkpoint1", "checkpoint2", "checkpoint_1_5", "checkpoint_2_10"]
    names += ["checkpoint.best_loss_2.5", "checkpoint.best_loss_3.25", "another"]
    for name in names:
        (tmp_path / f"{name}.pt").touch()
    never = {"keep_interval_updates": -1, "keep_last_epochs": -1, "keep_best_checkpoints": -1}
    fixed = {"keep_interval_updates_pattern": -1, "maximize_best_checkpoint_metric": False}
    of_all = {"save_dir": str(tmp_path), "best_checkpoint_metric": "loss", **never, **fixed}
    _delete_old(Namespace(**{**of_all, **more}), "")
    found = {path.stem for path in tmp_path.iterdir()}
    assert len(found) == left and {"checkpoint2", "checkpoint_2_10", "checkpoint_last", "another"} <= found
    better = "checkpoint.best_loss_3.25" if more.get("maximize_best_checkpoint_metric") else "checkpoint.best_loss_2.5"
    assert better in found
