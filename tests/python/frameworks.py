"""The examples of other frameworks, against one process; and what the frameworks would do wrong is refused by a sentence.

They are skipped by name where a framework is not installed: tools/setup --nightly installs all of them.
"""
import contextlib
import functools
import importlib.util
import itertools
import os
import pathlib
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist

import motley
from example_runs import EPOCHS, SAVE_STEPS, ExampleTest, Recorded, double_precision, run_by_torchrun, train_alone
from ranks import RanksTest


def needs(*packages):
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return unittest.skipIf(missing, f"{', '.join(missing)} not installed: tools/setup --nightly")


@needs("accelerate", "safetensors")
class Accelerate(ExampleTest):
    def test_it_dies_resumes_and_equals_one_process(self):
        from safetensors.torch import load_file
        batches = self.run_twice("accelerate_loop")
        self.check(load_file(self.folder / "checkpoint/model.safetensors"), train_alone(batches))


@needs("lightning")
class Fabric(ExampleTest):
    def test_it_dies_resumes_and_equals_one_process(self):
        batches = self.run_twice("fabric")
        self.check(torch.load(self.folder / "checkpoint")["model"], train_alone(batches))


@needs("lightning")
class Lightning(ExampleTest):
    def test_it_dies_resumes_and_equals_one_process(self):
        batches = self.run_twice("lightning_module")
        state = torch.load(self.folder / "checkpoint/last.ckpt")["state_dict"]
        self.check({name.removeprefix("net."): value for name, value in state.items()}, train_alone(batches))


# ---- Hugging Face's Trainer

@needs("transformers", "accelerate")
class HuggingFace(ExampleTest):
    """Paragraphs have different numbers of tokens, and the Trainer weights by these."""

    batches = [64] * 12

    def test_it_dies_resumes_and_equals_one_process(self):
        from safetensors.torch import load_file
        batches = self.run_twice("hugging_face")
        weights = load_file(self.folder / f"checkpoint/checkpoint-{len(batches)}/model.safetensors")
        self.check(weights, {name: value for name, value in train_by_trainer_alone(batches).items() if name in weights})


@double_precision()
def train_by_trainer_alone(batches):
    """The weights after these batches by the Trainer alone, in one process."""
    import transformers

    from hugging_face import collate, make_model, read_paragraphs
    paragraphs = read_paragraphs()
    torch.manual_seed(0)
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, num_train_epochs=1, per_device_train_batch_size=len(batches[0]), learning_rate=1e-3, save_strategy="no", report_to=[],
            train_sampling_strategy="sequential", use_cpu=True, disable_tqdm=True)
        transformers.Trainer(model, arguments, collate, [paragraphs[index] for index in itertools.chain(*batches)]).train()
    return model.state_dict()


class Numbers(torch.utils.data.Dataset):
    """Rows of numbers with a class each, of which every third is not known."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(size, 4, dtype=torch.float64, generator=generator)
        self.labels = torch.randint(3, (size,), generator=generator)
        self.labels[1::3] = -100

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class MeanModel(torch.nn.Module):
    """Its loss is the mean over its samples."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layer = torch.nn.Linear(4, 3, dtype=torch.float64)

    def forward(self, inputs, labels):
        return {"loss": (self.layer(inputs).sum(1) - labels).square().mean()}


class SumModel(MeanModel):
    """Its loss is that of the labels that are known, divided by their number on all ranks."""

    def forward(self, inputs, labels, num_items_in_batch=None, **_):
        loss = torch.nn.functional.cross_entropy(self.layer(inputs), labels, reduction="sum")
        return {"loss": loss / (num_items_in_batch if num_items_in_batch is not None else labels.ne(-100).sum())}


def make_trainer(model, size, folder, **arguments):
    import transformers
    given = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "max_grad_norm": 0, "save_strategy": "no", "report_to": [],
             "train_sampling_strategy": "sequential", "use_cpu": True, "disable_tqdm": True} | arguments
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1)
    return transformers.Trainer(model, transformers.TrainingArguments(folder, **given), train_dataset=Numbers(size),
                                optimizers=(optimizer, schedule))


def train_numbers(kind, size, folder, accumulation=1, **options):
    """The parameters after two epochs by a Trainer on the ranks, 16 samples a step."""
    from motley.integrations.transformers import prepare_trainer
    be_launched()
    model = kind()
    trainer = make_trainer(model, size, folder, gradient_accumulation_steps=accumulation, per_device_train_batch_size=8 // accumulation)
    prepare_trainer(trainer, **{"batch_split": [3, 1]} | options).train()
    return [parameter.detach().clone() for parameter in model.parameters()]


def train_numbers_alone(kind, size):
    """The same by PyTorch alone."""
    model, data = kind(), Numbers(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for begin in [*range(0, size, 16)] * 2:
        optimizer.zero_grad()
        model(data.inputs[begin:begin + 16], data.labels[begin:begin + 16])["loss"].backward()
        optimizer.step()
    return list(model.parameters())


def be_launched():
    """Sets what a launcher would have set."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="0")


def weight_as_well(folder):
    from motley.integrations.transformers import prepare_trainer
    be_launched()
    trainer = prepare_trainer(make_trainer(SumModel(), 64, folder))
    trainer.train()
    motley.weight_gradients(trainer.model_wrapped, motley.DataLoader(Numbers(64), 16))


def weigh_as_well(folder):
    from motley.integrations.transformers import prepare_trainer
    be_launched()
    trainer = prepare_trainer(make_trainer(SumModel(), 64, folder))
    trainer.train()
    trainer.get_train_dataloader().weigh(torch.ones(()))


@needs("transformers", "accelerate")
class TrainerOnRanks(RanksTest):
    def check(self, kind, size, **options):
        expected = train_numbers_alone(kind, size)
        for parameters in self.on_ranks(functools.partial(train_numbers, **options), kind, size, self.folder.name):
            for parameter, alone in zip(parameters, expected):
                torch.testing.assert_close(parameter, alone, rtol=1e-12, atol=1e-12)

    def test_means_are_weighted_by_samples(self):
        self.check(MeanModel, 56)

    def test_means_over_several_micro_batches(self):
        self.check(MeanModel, 64, accumulation=2)

    def test_sums_over_several_micro_batches(self):
        self.check(SumModel, 64, accumulation=2)

    def test_what_stands_in_for_a_sample_counts_nothing(self):
        self.check(SumModel, 51, batch_split=[15, 1], min_local_batch_size=0)  # of the last three samples one rank gets none

    def test_weighting_twice(self):
        for use, words in ((weight_as_well, "once a model"), (weigh_as_well, "divides the loss by the tokens")):
            for message in self.refused_on_ranks(use, self.folder.name):
                self.assertIn(words, message)


@needs("transformers", "accelerate")
class TrainerSettings(unittest.TestCase):
    def test_what_does_not_go_with_a_split_by_speed(self):
        from motley.integrations.transformers import prepare_trainer
        with tempfile.TemporaryDirectory() as folder:
            for arguments, words in (({"train_sampling_strategy": "group_by_length"}, "'random' or 'sequential' is accepted"),
                                     ({"auto_find_batch_size": True}, "max_local_batch_size"),
                                     ({"average_tokens_across_devices": False}, "True is accepted")):
                with self.subTest(words), self.assertRaises(ValueError) as caught:
                    prepare_trainer(make_trainer(SumModel(), 64, folder, **arguments))
                self.assertIn(words, str(caught.exception))


# ---- Accelerate

def accumulate_unknown_to_the_loader():
    import accelerate
    be_launched()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, loader = accelerator.prepare(MeanModel(), motley.DataLoader(Numbers(64), 16))
    motley.weight_gradients(model, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])


def skip_batches():
    import accelerate
    be_launched()
    next(iter(accelerate.skip_first_batches(motley.DataLoader(Numbers(64), 16), 2)))


@needs("accelerate")
class AccelerateScripts(unittest.TestCase):
    """Those of its own test scripts that run without GPUs, on two ranks."""

    def test_they_pass_with_motley_imported(self):
        import accelerate.test_utils
        folder = pathlib.Path(accelerate.test_utils.__file__).parent / "scripts"
        # As `accelerate launch --cpu` has it: without that each rank is alone.
        begin = ("import os, runpy; os.environ['ACCELERATE_USE_CPU'] = '1'; import accelerate, motley; "
                 "assert accelerate.PartialState(cpu=True).num_processes == 2; ")
        for name in ("test_script", "test_sync", "test_ops"):
            with self.subTest(name), tempfile.TemporaryDirectory() as here, contextlib.chdir(here):
                # Without an end: with Accelerate alone, too, one of six ends in "terminate called", of a thread of gloo's.
                program = f"{begin}runpy.run_path({str(folder / name)!r} + '.py', run_name='__main__'); os._exit(0)"
                done = run_by_torchrun("--no-python", sys.executable, "-c", program)
                self.assertEqual(done.returncode, 0, done.stderr)


@needs("accelerate")
class AccelerateOnRanks(RanksTest):
    def test_wrong_uses(self):
        for use, words in ((accumulate_unknown_to_the_loader, "gradient_accumulation_steps"), (skip_batches, "load_state_dict")):
            for message in self.refused_on_ranks(use):
                self.assertIn(words, message)


# ---- Lightning

def train_by_lightning(of_loader, of_lightning):
    """The parameters after two epochs of 16 samples a step, in so many micro-batches."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = MeanModel()

        def on_train_start(self):
            motley.weight_gradients(self.trainer.strategy.model, self.trainer.train_dataloader)

        def training_step(self, batch):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    be_launched()
    trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=2, max_epochs=2, accumulate_grad_batches=of_lightning,
                                logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module := Module(), motley.DataLoader(Numbers(64), 16, shuffle=False, batch_split=[3, 1],
                                                      gradient_accumulation_steps=of_loader))
    return [parameter.detach().clone() for parameter in module.parameters()]


@needs("lightning")
class LightningOnRanks(RanksTest):
    def test_accumulation(self):
        expected = train_numbers_alone(MeanModel, 64)
        for parameters in self.on_ranks(train_by_lightning, 2, 2):
            for parameter, alone in zip(parameters, expected):
                torch.testing.assert_close(parameter, alone, rtol=1e-12, atol=1e-12)

    def test_accumulation_of_which_the_loader_does_not_know(self):
        for message in self.refused_on_ranks(train_by_lightning, 1, 2):
            self.assertIn("gradient_accumulation_steps", message)


# ---- Ray Train, on a cluster of several nodes that are processes here

class RecordedByRay(Recorded):
    def die(self):
        import ray.train
        ray.train.get_all_reported_checkpoints(timeout_s=60)  # until Ray knows of them
        super().die()


def make_recorded(folder, limit):
    """The dataset of a worker, which dies where there is no checkpoint yet."""
    import ray.train

    from fashion_mnist import Images
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # as double_precision does; the process is the worker's
    run = 2 if ray.train.get_checkpoint() else 1
    return RecordedByRay(Images("t10k"), folder, run, limit if run == 1 else 0)


def train_on_batches_that_ray_prepares(_):
    from ray.train.torch import prepare_data_loader, prepare_model
    loader = motley.DataLoader(Numbers(50), 16, batch_split=[3, 1])
    model = motley.weight_gradients(prepare_model(MeanModel()), loader)
    for batch in prepare_data_loader(loader):
        model(**batch)["loss"].backward()


@needs("ray", "pyarrow")
class Ray(ExampleTest):
    @classmethod
    def setUpClass(cls):
        import ray.cluster_utils
        cluster = ray.cluster_utils.Cluster()
        cls.addClassCleanup(cluster.shutdown)
        for _ in range(3):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        cls.addClassCleanup(ray.shutdown)

    def test_it_dies_resumes_and_equals_one_process(self):
        import ray_train
        result = ray_train.train(functools.partial(make_recorded, str(self.folder), self.limit()), EPOCHS, self.folder / "checkpoint", 2,
                                 SAVE_STEPS, [3, 1])
        with result.checkpoint.as_directory() as folder:
            weights = torch.load(pathlib.Path(folder) / "state.pt")["model"]
        self.check(weights, train_alone(self.used_batches()))

    def test_batches_that_are_drawn_ahead_are_refused(self):
        import ray.train
        from ray.train.torch import TorchConfig, TorchTrainer
        with self.assertRaises(Exception) as caught:
            TorchTrainer(train_on_batches_that_ray_prepares, train_loop_config={}, torch_config=TorchConfig(backend="gloo"),
                         scaling_config=ray.train.ScalingConfig(num_workers=2),
                         run_config=ray.train.RunConfig(storage_path=str(self.folder))).fit()
        self.assertIn("iterate over the motley.DataLoader itself", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
