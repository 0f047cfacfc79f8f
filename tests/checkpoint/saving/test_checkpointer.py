"""A checkpoint comes back bit for bit, in whatever parallel layout it is loaded into. Ranks are real gloo processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import load as dcp_load
from worlds_server import in_worlds

from slurm_robust import checkpoint


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_every_layout_loads_what_every_other_saved(tmp_path: Path, asynchronous: bool) -> None:
    """Saved by one to four ranks as FSDP2, TP, both or DDP; loaded into others: the same bits, and the last step."""
    saved, loaded = in_worlds(f"""
options = {{"asynchronous": {asynchronous}}}
worlds = {{"fsdp": 4, "fsdp+tp": 4, "ddp": 2, "tp": 2, "plain": 1}}
saved = {{k: run(n, train_and_save, f"{tmp_path}/{{k}}", k, 2, options) for k, n in worlds.items()}}
told(saved)
targets = {{"fsdp": "plain", "fsdp+tp": "fsdp", "ddp": "fsdp+tp", "tp": "ddp", "plain": "tp"}}
told({{k: run(worlds[v], load, f"{tmp_path}/{{k}}", v) for k, v in targets.items()}})
""")
    for layout, ranks in saved.items():
        assert len({rank["digests"][-1] for rank in ranks}) == 1, layout
        assert {rank["sealed"] for rank in ranks} == {2}
        for rank in loaded[layout]:
            assert rank["step"] == 2
            assert rank["digest"] == ranks[0]["digests"][-1], layout
            assert rank["source"] == "files"
        found = checkpoint.latest(tmp_path / layout, deep=True)
        assert found.step == 2
        assert found.path is not None
        report = checkpoint.verify(found.path)
        assert report.verified
        assert report.world_size == len(ranks)


def test_each_rank_gets_its_own_random_generators_back(tmp_path: Path) -> None:
    """The next random number after a restart is the one that would have come; of another world they stay, said so."""
    saved, same, fewer = in_worlds(f"""
def drawn(rank, *args):
    torch.manual_seed(rank)
    return train_and_save(rank, *args)
told(run(2, drawn, {str(tmp_path)!r}, "ddp", 1))
told(run(2, load, {str(tmp_path)!r}, "ddp"))
told(run(4, load, {str(tmp_path)!r}, "ddp"))
""")
    assert [rank["random"] for rank in same] == [rank["random"] for rank in saved]
    assert same[0]["notes"] == []
    assert "not restored" in fewer[3]["notes"][0]
    assert "rng" in fewer[3]["notes"][0]


def test_what_dcp_loads_without_us(tmp_path: Path) -> None:
    """The folder is torch.distributed.checkpoint's own format: its plain loader reads it; so does our verification."""
    in_worlds(f"run(2, train_and_save, {str(tmp_path)!r}, 'fsdp', 1)")
    path = checkpoint.latest(tmp_path).path
    assert path is not None
    into = {"model": {"0.weight": torch.zeros(32, 16), "2.bias": torch.zeros(7)}}
    with pytest.warns(UserWarning, match="single process"):
        dcp_load(into, checkpoint_id=path)
    assert into["model"]["0.weight"].abs().sum() > 0
    (path / "seal.json").unlink()
    report = checkpoint.verify(path)
    assert report.verified, report.problems
    assert "torch.distributed.checkpoint" in report.formats


@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_who_prepares_or_saves_before_the_first_step_trains_the_same(tmp_path: Path, layout: str) -> None:
    """An optimizer that has taken no step has taken none afterwards: Adam's first step would be its second."""
    ((own, other),) = in_worlds(f"""
def untouched(rank, directory):
    found = []
    for prepared in (False, True):
        training = Training("{layout}")
        with Checkpointer(directory) as saver:
            if prepared:
                saver.prepare(training.state)
                assert saver.save(0, training.state)
            for number in (1, 2, 3):
                training.step(number)
            assert saver.save(3, training.state)
        found.append(training.digest())
    again = Training("{layout}", seed=7)
    with Checkpointer(directory) as saver:
        saver.load_latest(again.state)
    return [*found, again.digest()]
told(run(2, untouched, "{tmp_path}/ckpt"))
""")
    assert len({*own, *other}) == 1
