"""Frames that hosts show, by the place in the program: `function file:line`, outermost first.

Functions and files as py-spy shows them for torch 2.x, Megatron-LM and FSDP; a host's stack is the place of the action
that it is in, nothing else.
"""

from __future__ import annotations

_C10D = "torch/distributed/distributed_c10d.py"
_LOG = "wrapper torch/distributed/c10d_logger.py:81"
_P2P = "megatron/core/pipeline_parallel/p2p_communication.py"
_SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
_TRAINING = "megatron/training/training.py"
_BUFFERS = "megatron/core/distributed/param_and_grad_buffer.py"
_MAPPINGS = "megatron/core/tensor_parallel/mappings.py"
_DISPATCH = "megatron/core/transformer/moe/token_dispatcher.py"
_ENGINE = ("backward torch/autograd/__init__.py:354", "_engine_run_backward torch/autograd/graph.py:829")
_QUEUE_GET = (
    "get multiprocessing/queues.py:113",
    "poll multiprocessing/connection.py:257",
    "wait multiprocessing/connection.py:947",
    "select selectors.py:415",
)
_NEXT = (
    "__next__ torch/utils/data/dataloader.py:733",
    "_next_data torch/utils/data/dataloader.py:1491",
    "_get_data torch/utils/data/dataloader.py:1453",
    "_try_get_data torch/utils/data/dataloader.py:1284",
)


def _comm(function: str, line: int) -> tuple[str, ...]:
    return (_LOG, f"{function} {_C10D}:{line}")


_MAIN = ("<module> /home/u/pretrain_gpt.py:307", f"pretrain {_TRAINING}:735", f"train {_TRAINING}:2203")
_STEP = (*_MAIN, f"train_step {_TRAINING}:1333")
_PIPE = (*_STEP, f"forward_backward_pipelining {_SCHEDULES}:1845")
_FORWARD = (
    *_PIPE,
    f"forward_step {_SCHEDULES}:402",
    "forward_step /home/u/pretrain_gpt.py:214",
    "_call_impl torch/nn/modules/module.py:1762",
    "forward megatron/core/models/gpt/gpt_model.py:462",
    "forward megatron/core/transformer/transformer_block.py:618",
    "forward megatron/core/transformer/transformer_layer.py:512",
)
_BACKWARD = (*_PIPE, f"backward_step {_SCHEDULES}:516", f"custom_backward {_SCHEDULES}:168", *_ENGINE[1:])
_BATCH = (*_PIPE, f"forward_step {_SCHEDULES}:402", "forward_step /home/u/pretrain_gpt.py:209")
_TP_BATCH = (
    *_BATCH,
    "get_batch /home/u/pretrain_gpt.py:110",
    "get_batch_on_this_tp_rank megatron/training/utils.py:452",
)
_P2P_CALL = (*_PIPE, f"send_forward_recv_backward {_P2P}:580", f"_communicate {_P2P}:398")
_MOE = (*_FORWARD, "forward megatron/core/transformer/moe/moe_layer.py:240")
_SAVE = (*_MAIN, f"save_checkpoint_and_time {_TRAINING}:1702", "save_checkpoint megatron/training/checkpointing.py:455")

MEGATRON: dict[str, tuple[str, ...]] = {
    "start": _MAIN[:1],
    "load": (*_TP_BATCH, *_NEXT, *_QUEUE_GET),
    "tp.batch": (*_TP_BATCH, "_broadcast megatron/training/utils.py:440", *_comm("broadcast", 2714)),
    "forward": (*_FORWARD, "forward megatron/core/transformer/attention.py:771"),
    "tp.forward": (*_FORWARD, "forward megatron/core/tensor_parallel/layers.py:1148",
                   f"forward {_MAPPINGS}:228", f"_reduce {_MAPPINGS}:35", *_comm("all_reduce", 2810)),
    "sp.gather": (*_FORWARD, "forward megatron/core/tensor_parallel/layers.py:963",
                  f"_gather_along_first_dim {_MAPPINGS}:104", *_comm("all_gather_into_tensor", 3798)),
    "sp.scatter": (*_FORWARD, "forward megatron/core/tensor_parallel/layers.py:1148",
                   f"_reduce_scatter_along_first_dim {_MAPPINGS}:145", *_comm("reduce_scatter_tensor", 4218)),
    "backward": _BACKWARD,
    "moe.dispatch": (*_MOE, f"token_dispatch {_DISPATCH}:542", f"all_to_all {_MAPPINGS}:570",
                     *_comm("all_to_all_single", 4590)),
    "moe.combine": (*_MOE, f"token_combine {_DISPATCH}:631", f"all_to_all {_MAPPINGS}:570",
                    *_comm("all_to_all_single", 4590)),
    "moe.sync": (*_MOE, f"dispatch_preprocess {_DISPATCH}:503", f"_maybe_dtoh_and_synchronize {_DISPATCH}:699"),
    "p2p": (*_P2P_CALL, f"_batched_p2p_ops {_P2P}:171", f"batch_isend_irecv {_C10D}:2612"),
    "p2p.sync": (*_P2P_CALL, "synchronize torch/cuda/__init__.py:1040"),
    "p2p.post": (*_P2P_CALL, f"_p2p_ops {_P2P}:233", f"isend {_C10D}:2376"),
    "p2p.wait": (*_PIPE, f"wait {_C10D}:590"),
    "dp.reduce": (*_PIPE, "finish_grad_sync megatron/core/distributed/distributed_data_parallel.py:475",
                  f"finish_grad_sync {_BUFFERS}:422", f"start_grad_sync {_BUFFERS}:389",
                  *_comm("reduce_scatter_tensor", 4218)),
    "embedding": (*_PIPE, "finalize_model_grads megatron/core/distributed/finalize_model_grads.py:272",
                  "_allreduce_word_embedding_grads megatron/core/distributed/finalize_model_grads.py:110",
                  *_comm("all_reduce", 2810)),
    "norm": (*_STEP, "step megatron/core/optimizer/optimizer.py:1071",
             "get_grad_norm_fp32 megatron/core/optimizer/clip_grads.py:127", *_comm("all_reduce", 2810)),
    "norm.item": (*_STEP, "step megatron/core/optimizer/optimizer.py:1071",
                  "get_grad_norm_fp32 megatron/core/optimizer/clip_grads.py:134"),
    "optimizer": (*_STEP, "step megatron/core/optimizer/optimizer.py:498"),
    "dp.gather": (*_STEP, "step megatron/core/optimizer/distrib_optimizer.py:2012", f"start_param_sync {_BUFFERS}:291",
                  *_comm("all_gather_into_tensor", 3798)),
    "loss": (*_MAIN, "train_step megatron/training/training.py:1391", *_comm("all_reduce", 2810)),
    "loss.item": (*_MAIN, f"training_log {_TRAINING}:1520"),
    "evaluate": (*_MAIN, f"evaluate_and_print_results {_TRAINING}:2510", f"evaluate {_TRAINING}:2398",
                 "forward_step /home/u/pretrain_gpt.py:214"),
    "evaluate.barrier": (*_MAIN, f"evaluate_and_print_results {_TRAINING}:2530", *_comm("barrier", 4640)),
    "save": (*_SAVE, "save megatron/core/dist_checkpointing/serialization.py:405",
             "write_preloaded_data megatron/core/dist_checkpointing/strategies/filesystem_async.py:350",
             "_write_item torch/distributed/checkpoint/filesystem.py:310"),
    "save.barrier": (*_SAVE, *_comm("barrier", 4640)),
    "barrier": (*_STEP, *_comm("barrier", 4640)),
    "index": (*_BATCH, "__getitem__ megatron/core/datasets/gpt_dataset.py:216",
              "get megatron/core/datasets/indexed_dataset.py:790"),
    "compile": (*_FORWARD, "_compile torch/_dynamo/convert_frame.py:1052",
                "compile_to_fn torch/_inductor/graph.py:2318", "_wait_futures torch/_inductor/async_compile.py:507",
                "result concurrent/futures/_base.py:451", "wait threading.py:327"),
    "user": (*_STEP, "rescale /home/u/hooks.py:41"),
    "user.lock": (*_STEP, "publish /home/u/hooks.py:66", "wait threading.py:327"),
}  # fmt: skip

_F_MAIN = ("<module> /home/u/train.py:190", "main /home/u/train.py:157")
_RUNTIME = "torch/distributed/fsdp/_runtime_utils.py"
_F_MODEL = (
    *_F_MAIN,
    "_call_impl torch/nn/modules/module.py:1762",
    "forward torch/distributed/fsdp/fully_sharded_data_parallel.py:864",
)
FSDP: dict[str, tuple[str, ...]] = {
    "start": _F_MAIN[:1],
    "load": (*_F_MAIN, *_NEXT, *_QUEUE_GET),
    "gather": (*_F_MODEL, f"_pre_forward_unshard {_RUNTIME}:427", f"_unshard {_RUNTIME}:301",
               "_all_gather_flat_param torch/distributed/fsdp/_flat_param.py:1456",
               *_comm("all_gather_into_tensor", 3798)),
    "forward": (*_F_MODEL, "forward transformers/models/llama/modeling_llama.py:302"),
    "backward": (*_F_MAIN, "backward torch/_tensor.py:626", *_ENGINE),
    "norm": (*_F_MAIN, "clip_grad_norm_ torch/distributed/fsdp/fully_sharded_data_parallel.py:1172",
             *_comm("all_reduce", 2810)),
    "norm.item": (*_F_MAIN, "clip_grad_norm_ torch/distributed/fsdp/fully_sharded_data_parallel.py:1181"),
    "optimizer": (*_F_MAIN, "step torch/optim/optimizer.py:493"),
    "loss": (*_F_MAIN, *_comm("all_reduce", 2810)),
    "loss.item": ("<module> /home/u/train.py:190", "main /home/u/train.py:171"),
    "evaluate": (*_F_MAIN, "evaluate /home/u/train.py:96", "_call_impl torch/nn/modules/module.py:1762"),
    "evaluate.barrier": (*_F_MAIN, *_comm("barrier", 4640)),
    "save": (*_F_MAIN, "save torch/serialization.py:943", "_save torch/serialization.py:1213"),
    "save.barrier": ("<module> /home/u/train.py:190", "main /home/u/train.py:181", *_comm("barrier", 4640)),
    "barrier": (*_F_MAIN, *_comm("barrier", 4640)),
    "index": (*_F_MAIN, "tokens /home/u/corpus.py:77", "memmap numpy/lib/_memmap_impl.py:282"),
    "compile": (*_F_MODEL, "_compile torch/_dynamo/convert_frame.py:1052",
                "_wait_futures torch/_inductor/async_compile.py:507", "wait threading.py:327"),
    "user": (*_F_MAIN, "augment /home/u/train.py:31"),
    "user.lock": (*_F_MAIN, "publish /home/u/hooks.py:66", "wait threading.py:327"),
}  # fmt: skip
DDP: dict[str, tuple[str, ...]] = {
    **FSDP,
    "buffers": (*_F_MAIN, "_call_impl torch/nn/modules/module.py:1762",
                "forward torch/nn/parallel/distributed.py:1666", "_sync_buffers torch/nn/parallel/distributed.py:2170",
                "_distributed_broadcast_coalesced torch/nn/parallel/distributed.py:2108"),
    "forward": (*_F_MAIN, "_call_impl torch/nn/modules/module.py:1762", "forward /home/u/model.py:88"),
}  # fmt: skip
_WORKER = (
    *_F_MAIN,
    "__iter__ torch/utils/data/dataloader.py:491",
    "_bootstrap multiprocessing/process.py:314",
    "run multiprocessing/process.py:108",
)
_FETCH = (
    *_WORKER,
    "_worker_loop torch/utils/data/_utils/worker.py:349",
    "fetch torch/utils/data/_utils/fetch.py:52",
    "__getitem__ /home/u/data.py:12",
)
WORKER: dict[str, tuple[str, ...]] = {
    "idle": (*_WORKER, "_worker_loop torch/utils/data/_utils/worker.py:333", *_QUEUE_GET),
    "fetch": _FETCH,
    "lock": (*_FETCH, "wait threading.py:629", "wait threading.py:327"),
    "http": (*_FETCH, "get requests/api.py:73", "readinto socket.py:706", "recv_into ssl.py:1314"),
    "read": (*_FETCH, "memmap numpy/lib/_memmap_impl.py:282"),
}
FEEDER = ("_bootstrap threading.py:1002", "run threading.py:982", "_feed multiprocessing/queues.py:231",
          "wait threading.py:327")  # fmt: skip
HOLDER = ("_bootstrap threading.py:1002", "run threading.py:982", "_publish /home/u/native_metrics.py:58")
PUBLISHER = ("_bootstrap threading.py:1002", "run threading.py:982", "_drain /home/u/publisher.py:31")
FRAMES = {"megatron": MEGATRON, "fsdp": FSDP, "ddp": DDP}
