"""Lightning's Trainer under Slurm, with its own progress bar and `last.ckpt`.

python lightning_fit.py CHECKPOINT_FOLDER
"""

from __future__ import annotations

import os
import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from plain_ddp import SAVE_EVERY, STEPS, Squares
from torch import nn
from torch.utils.data import DataLoader


class Model(lightning.LightningModule):
    """Learns squares."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

    def training_step(self, batch: torch.Tensor, _index: int) -> Any:
        """The loss, on the bar and in the log."""
        loss = (self.net(batch) - batch.square()).square().mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Train."""
    folder = sys.argv[1]
    nodes = int(os.environ["SLURM_NNODES"])
    saving = ModelCheckpoint(folder, every_n_train_steps=SAVE_EVERY, save_top_k=-1, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, num_nodes=nodes, strategy="ddp", max_steps=STEPS, max_epochs=-1,
        callbacks=[saving, TQDMProgressBar(refresh_rate=1)], logger=CSVLogger(os.environ["TRIAL_FOLDER"]),
        log_every_n_steps=5, enable_model_summary=False,
    )  # fmt: skip
    data = [torch.utils.data.Subset(Squares(), range(48))] * 3
    trainer.fit(
        Model(), DataLoader(torch.utils.data.ConcatDataset(data), batch_size=None, num_workers=1), ckpt_path="last"
    )


if __name__ == "__main__":
    main()
