"""Hugging Face's Trainer with a tiny GPT-2 from scratch on random tokens, resumed from its newest `checkpoint-N`.

python hf_trainer.py CHECKPOINT_FOLDER
"""

from __future__ import annotations

import sys

import torch
from plain_ddp import SAVE_EVERY, STEPS
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random ones."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(128, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train."""
    folder = sys.argv[1]
    options = TrainingArguments(
        output_dir=folder, max_steps=STEPS, save_steps=SAVE_EVERY, logging_steps=5, per_device_train_batch_size=2,
        dataloader_num_workers=1, use_cpu=True, ddp_backend="gloo", save_total_limit=2, report_to=[],
    )  # fmt: skip
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=16, n_embd=32, n_layer=1, n_head=2))
    Trainer(model=model, args=options, train_dataset=Tokens()).train(resume_from_checkpoint=get_last_checkpoint(folder))


if __name__ == "__main__":
    main()
