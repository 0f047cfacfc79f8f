"""How does an existing training use this package? With one line where its framework saves, and one where it starts.

    from slurm_robust.checkpoint.integrations import resume_path, trainer_callback

    trainer = Trainer(..., callbacks=[trainer_callback()])           # every checkpoint is sealed after it was saved
    trainer.train(resume_from_checkpoint=resume_path("out"))         # the newest that verifies; None: from the start

The table of all frameworks is in docs/checkpoints.md. `choosing` finds the checkpoint to resume from and returns it as
the argument that the framework expects. `huggingface` and `lightning` have the callbacks, and `sealing` seals what was
saved, in a thread. `group` finds this process's rank and node, and has a barrier.

No framework is imported before its own function is called. Nothing here raises into a training: a checkpoint that
could not be sealed is reported on stderr and never chosen.
"""

from slurm_robust.checkpoint.integrations.choosing import pin_latest, resume_path, resume_tag
from slurm_robust.checkpoint.integrations.huggingface import trainer_callback
from slurm_robust.checkpoint.integrations.lightning import lightning_callback
from slurm_robust.checkpoint.integrations.sealing import Sealer, seal_saved

__all__ = [
    "Sealer",
    "lightning_callback",
    "pin_latest",
    "resume_path",
    "resume_tag",
    "seal_saved",
    "trainer_callback",
]
