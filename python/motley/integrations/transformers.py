"""Hugging Face's Trainer on motley.DataLoader.

The Trainer makes its own loader, wraps the model itself, and, where the model computes the loss, divides the sum over a rank's tokens
by the number of tokens of all ranks. That is right for any split of a batch, so such gradients are only measured; those of other
losses are weighted by samples, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._loader import DataLoader
from .._weighting import weight_gradients

try:
    from transformers import Trainer, TrainerCallback
except ImportError as problem:
    raise ImportError("motley.integrations.transformers needs Hugging Face's packages: pip install transformers accelerate") from problem

_STATE = "motley.DataLoader"  # the loader's state in a checkpoint's trainer_state.json
_TAKEN_OVER = ("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor",
               "persistent_workers")


def prepare_trainer(trainer: Trainer, **arguments: Any) -> Trainer:
    """Lets a Trainer train on batches that are split among the ranks by their measured speed.

    What its arguments say stays: the global batch is ``per_device_train_batch_size`` times the ranks times
    ``gradient_accumulation_steps``. Its checkpoints have the loader's state, so ``resume_from_checkpoint`` goes on with the samples
    that were left.

    Args:
        trainer: before its ``train()``.
        **arguments: of ``motley.DataLoader``, such as ``batch_split`` and ``max_local_batch_size``.

    Returns:
        The same trainer.

    Raises:
        ValueError: a Trainer whose settings do not go with a split by speed, each with what is accepted.
    """
    given = trainer.args
    if given.train_sampling_strategy not in ("random", "sequential"):
        raise ValueError(f"train_sampling_strategy is '{given.train_sampling_strategy}', which says how many samples a rank gets; "
                         "'random' or 'sequential' is accepted, and motley.DataLoader splits the batch")
    if given.auto_find_batch_size:
        raise ValueError("auto_find_batch_size would change the global batch: leave it out, and say max_local_batch_size, the most samples "
                         "that this rank's memory holds")
    callback = _Callback(trainer, arguments)
    if callback.divides_by_tokens and not given.average_tokens_across_devices:
        raise ValueError("average_tokens_across_devices is False: ranks with few tokens would count as much as ranks with many; "
                         "True is accepted, the default")
    trainer.get_train_dataloader = callback.get_train_dataloader
    trainer.add_callback(callback)
    given.ignore_data_skip = True  # it would make another loader, to skip batches
    return trainer


class _Callback(TrainerCallback):  # type: ignore[misc]
    """What Trainer calls: its loader, and how far that is."""

    def __init__(self, trainer: Trainer, arguments: dict[str, Any]) -> None:
        self._trainer, self._arguments = trainer, arguments
        self._get_original = trainer.get_train_dataloader
        self._loader: DataLoader | None = None  # the same in each train(), as the model's wrapper is
        self.divides_by_tokens = "labels" in trainer.label_names and (
            trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)

    def get_train_dataloader(self) -> DataLoader:
        """The Trainer's own loader, but for which samples a rank gets."""
        if self._loader is None:
            given, original = self._trainer.args, self._get_original()
            batch = given.train_batch_size * given.world_size * given.gradient_accumulation_steps
            chosen = {
                "shuffle": given.train_sampling_strategy == "random", "drop_last": given.dataloader_drop_last,
                "seed": given.seed if given.data_seed is None else given.data_seed,
                "gradient_accumulation_steps": given.gradient_accumulation_steps}
            taken_over = {name: getattr(original, name) for name in _TAKEN_OVER}
            kind = _TokenLoader if self.divides_by_tokens else DataLoader
            self._loader = kind(original.dataset, batch, **chosen | taken_over | self._arguments)
        return self._loader

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        loader = self.get_train_dataloader()
        if _STATE in state.stateful_callbacks:
            loader.load_state_dict(state.stateful_callbacks[_STATE])
        if not loader._weights:
            weight_gradients(self._trainer.model_wrapped, loader, by="loss" if self.divides_by_tokens else "samples")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._loader is not None:
            state.stateful_callbacks[_STATE] = self._loader.state_dict()


class _TokenLoader(DataLoader):
    """Batches for a loss that the Trainer divides by the tokens of all ranks."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            labels = batch.get("labels")
            if labels is None or labels.is_floating_point():
                raise ValueError("batches have no 'labels' that are integers, which the Trainer counts to divide the loss by their number: "
                                 "name the labels of another kind in label_names of TrainingArguments")
            if not self.samples:  # what stands in for a sample counts nothing
                for name in {"labels", "shift_labels"} & batch.keys():
                    batch[name].fill_(-100)
            yield batch

    def weigh(self, loss: Any) -> Any:
        raise RuntimeError("the Trainer divides the loss by the tokens of all ranks already: leave loader.weigh out")
