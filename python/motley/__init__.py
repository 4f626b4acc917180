"""Motley: trains deep networks on heterogeneous hardware, so that fast and slow workers finish together.

Three lines of a PyTorch script change:

    import motley

    loader = motley.DataLoader(dataset, global_batch_size=256)      # instead of DataLoader with a DistributedSampler
    model = motley.weight_gradients(DDP(net), loader)

and each batch is split among the ranks by their measured speed, while gradients stay those of the whole batch.

Planning needs no training script:

    profile = motley.profile(model, example_inputs)         # or motley.estimate("vgg16", "cluster.yaml")
    print(motley.plan(profile, "cluster.yaml", global_batch_size=256))
"""

import os
import signal
import sys

# Threads that libraries start at their import take no signals: a command that waits for Ctrl-C blocks it in this thread alone.
_mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
try:
    import torch
finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask)

try:
    from . import _motley
except ImportError as problem:
    raise ImportError(f"motley's extension module cannot be loaded with PyTorch {torch.__version__} ({problem}). It is built "
                      "for one version; in a clone of Motley: pip install --no-build-isolation .") from problem

if torch.__version__.split("+")[0].split(".")[:2] != _motley.torch_version.split("+")[0].split(".")[:2]:
    raise ImportError(f"motley was built for PyTorch {_motley.torch_version}, and this is PyTorch {torch.__version__}. "
                      "Build it for this one, in a clone of Motley: pip install --no-build-isolation .")

import motley_backend

_motley.set_own_program([sys.executable, "-m", "motley"], os.path.dirname(__file__))

from . import _backend, emulated, nn, optim  # noqa: F401
from ._elastic import make_elastic
from ._launch import LaunchError, launch
from ._loader import DataLoader, Mean
from ._pipeline import Pipeline, pipeline
from ._planning import estimate, plan, schedule, simulate
from ._profile import profile
from ._results import Plan, Profile, Schedule, Simulation
from ._run_step import run_step
from ._weighting import weight_gradients

if "MOTLEY_EMULATED" in os.environ:
    emulated.enable_by_text(os.environ["MOTLEY_EMULATED"])
motley_backend.register()

__version__: str = _motley.version
__all__ = ["DataLoader", "LaunchError", "Mean", "Pipeline", "Plan", "Profile", "Schedule", "Simulation", "emulated", "estimate",
           "launch", "make_elastic", "nn", "optim", "pipeline", "plan", "profile", "run_step", "schedule", "simulate", "weight_gradients"]
