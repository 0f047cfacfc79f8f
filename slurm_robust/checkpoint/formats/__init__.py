"""Which framework wrote this checkpoint, and is it complete?

`registry` tries all formats on the `tree` of a checkpoint: its file names, and the content of its small files. Nothing
in a checkpoint is executed.

* A module for each framework: `dcp` (torch.distributed.checkpoint), `deepspeed`, `huggingface`, `lightning`,
  `megatron`.
* Single files: `torchfile` reads what `torch.save` writes, `zipend` checks the end of such a file, which is a zip, and
  `safetensors` reads safetensors.
* Pickles: `inert` reads a pickle without importing or calling what the pickle names. `names` lists the usual names, so
  that a name with one letter changed is recognised as damage.

To add a format, write a module with `recognise` and add it to `registry`.
"""
