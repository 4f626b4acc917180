"""Our recovery in Oobleck's published simulator, against Oobleck's own, Varuna's and Bamboo's in the same command.

    elastic_oobleck.py [--quick] [--simulator FOLDER]

FOLDER, or MOTLEY_OOBLECK_SIMULATOR, is tools/simulator of Oobleck's branch sosp23-artifact. Its nodes, failures, spot traces and step
times are used as they are, and its accounts: effective time over the sum of all that it counts. What is ours is what a loss costs, by
the inputs in elastic_oobleck.json, which has a source for each:

1. Survivors go on after detection and install, as measured, and after Oobleck's own reconfiguration, which has the copy of state in it.
2. Of the step under way the lost replica's share is thrown away and computed again; the rest of what was computed of it stays. There
   are as many replicas as the nodes suffice for, each of the fewest nodes that hold the model, where these are known, and else two. What
   was on its way through a pipeline, and filling it once more, are not charged. The accounts are charged as for Oobleck: the lost share
   of a whole step time is lost, whenever in the step the failure comes, and that share of the step that broke off counts as
   effective none the less. With a share of one, and nothing for detection, every figure is Oobleck's to the last digit, which is
   checked: that of an Oobleck with which no step ends that was broken off (BrokenSteps), as in ours.
3. Nodes stand in Oobleck's order, one of each replica to a stage. Where a stage loses all before the next layout is installed, all go
   back to the last checkpoint, at the price that the artifact has for Varuna. Oobleck's simulator charges Oobleck nothing for that.
   Checkpoints cost nothing to write, neither here nor for Oobleck.
4. From then on the step takes what it takes Oobleck with as many nodes, also the rest of the step under way. So Oobleck's pipeline
   templates are taken for granted, though Motley keeps a pipeline's plan where a stage has other ranks. Nodes that join wait
   for the next failure, as in the artifact, and cost nothing then.

After losses at one moment, which only the spot traces have, the artifact's job stands still until the next node comes or goes, and no
account is charged. So no samples per second are said of these.
"""
import contextlib
import csv
import heapq
import importlib
import io
import json
import math
import os
import pathlib
import re
import sys
from typing import Any, NamedTuple

from rows import print_rows, read_flags, row, say

MODELS = {"BERT-large": "bert", "GPT-2-ours": "gpt2", "GPT-3-medium": "gpt3-medium", "GPT-3-2_7b": "gpt3-2.7b", "GPT-3-6_7b": "gpt3-6.7b"}
RATES = {"6h": "6h", "3h": "3h", "1h": "1h", "30m": "30min", "10m": "10min"}
SPOT = {"scaled/scale_gcp-trace": "gcp", "scaled/scale_p3-trace": "ec2"}
TARGETS = {("BERT-large", "10m"): 0.97, ("GPT-3-6_7b", "10m"): 0.85}


class Costs(NamedTuple):
    """Of a loss; times in milliseconds, as the artifact has them."""
    pause: int
    restart: int
    interval: int  # steps between checkpoints
    fewest_nodes: float  # that hold the model
    keeps_rest: bool  # of the step under way

    def replicas(self, nodes):
        return max(2, int(nodes / self.fewest_nodes))


class BrokenSteps:
    """To be mixed into the artifact's Simulator of Oobleck: a step that a loss has broken off does not end before the next layout is
    installed. In the artifact one that was about to end does, and counts, and so does what is begun after it."""

    def simulate_training_step_complete(self, delta, data):
        if self.status.name == "RUNNING":
            super().simulate_training_step_complete(delta, data)


class OurRecovery(BrokenSteps):
    """Likewise; the methods are the Simulator's, but for the first and the last."""

    def __init__(self, costs, **settings):
        super().__init__(**settings)
        self.costs = costs
        self.local_rendezvous_timeout_delta = costs.pause
        self.kept = 0.0  # of the step under way, what was computed before the last loss and stays
        self.running: tuple[int, int] | None = None  # when what is left of it was begun, and how long that takes
        self.stage_of: dict[str, int] = {}
        self.replicas = 2
        self.restarted = 0  # when the last checkpoint is there
        self.restarts = 0

    def simulate_assign_coordinates(self):
        super().simulate_assign_coordinates()
        self.running = None  # where losses were at one moment, the artifact installs more than once and may then stand still
        self.replicas = self.costs.replicas(len(self.rendezvous))
        last = max(len(self.rendezvous) // self.replicas - 1, 0)
        self.stage_of = {name: min(index // self.replicas, last) for index, name in enumerate(self.rendezvous)}

    def create_training_step_complete_event(self, delta, rendezvous_version):
        whole = self.step_delta
        self.step_delta = int(whole * (1 - self.kept))
        self.running = (delta, self.step_delta)
        event = super().create_training_step_complete_event(delta, rendezvous_version)
        self.step_delta = whole
        return event

    def simulate_training_step_complete(self, delta, data):
        if self.running and data["rendezvous_version"] == self.rendezvous_version:
            self.kept = 0.0
        super().simulate_training_step_complete(delta, data)

    def create_global_rendezvous_timeout_event(self, delta):
        self.global_rendezvous_timeout_delta = max(self.restarted - delta, 0)
        return super().create_global_rendezvous_timeout_event(delta)

    def simulate_spot_instance_remove(self, delta, data):
        stage = self.stage_of.pop(data["name"], None)
        is_stage_lost = stage is not None and stage not in self.stage_of.values()
        share = 1 / self.replicas if self.costs.keeps_rest and not is_stage_lost else 1.0
        if self.running:
            begun, duration = self.running
            self.effective_time -= (1 - share) * (begun + duration - delta)
            self.kept += (delta - begun) / self.step_delta
            self.running = None
        self.kept *= 1 - share
        lost_before = self.fallback_loss_time
        if is_stage_lost:
            lost_before += self.go_back(delta)
        super().simulate_spot_instance_remove(delta, data)
        self.fallback_loss_time = lost_before + share * self.step_delta

    def go_back(self, delta):
        """To the last checkpoint; how long the steps since then took."""
        self.restarts += 1
        self.restarted = delta + self.costs.restart
        self.events = [event for event in self.events if event.kind.name != "GLOBAL_RENDEZVOUS_TIMEOUT"]
        heapq.heapify(self.events)
        steps = self.num_steps_complete % self.costs.interval
        self.num_steps_complete -= steps
        first = len(self.performance_ys) - 2 * steps  # the artifact has two values for each step
        self.performance_ys[first:] = [0.0] * (2 * steps)
        return steps * self.step_delta


class Outcome(NamedTuple):
    effective: float
    samples_per_second: float
    losses: int
    restarts: int
    overrun: float  # what the accounts add up to, over the time that the trace takes


def read_inputs():
    return {name: entry["value"] for name, entry in json.loads(pathlib.Path(__file__).with_suffix(".json").read_text()).items()}


def make_costs(inputs, model):
    pause = inputs["detection_and_install"] + inputs["reconfiguration"][model]
    return Costs(round(1e3 * pause), round(1e3 * inputs["restart"][model]), inputs["checkpoint_interval"],
                 inputs["fewest_nodes"].get(model, math.inf), keeps_rest=True)


class Artifact:
    """Oobleck's simulators, from a folder outside of this tree."""

    def __init__(self, folder):
        self.traces = folder / "traces"
        sys.path.insert(0, str(folder))
        names = ("oobleck", "varuna", "bamboo")
        self.peers: dict[str, Any] = {name: importlib.import_module(f"{name}_simulator").Simulator for name in names}
        self.strict = type("StrictOobleck", (BrokenSteps, self.peers["oobleck"]), {})
        self.ours = type("Ours", (OurRecovery, self.peers["oobleck"]), {})

    def run(self, simulator, model, trace, **settings):
        """As eval_tput_vs_freq.py and eval_gcp_ec2.py of the artifact do."""
        printed, file = io.StringIO(), self.traces / f"{trace}.csv"
        settings = {"steps_per_run": 2_000_000_000 if trace in SPOT else 200_000} | settings
        with open(file) as events, contextlib.redirect_stdout(printed):
            done = simulator(start_hour=0, generate_addition_probabilities=None, spot_instance_trace=events, model=model,
                             time_hard_stop=True, **settings)
            result = done.simulate()
        with open(file) as events:
            end = max(int(when) for when, *_ in csv.reader(events))
        accounts = [float(value) for value in re.findall(r"^\w[\w ]*:([0-9.e+]+), ", printed.getvalue(), re.M)]
        effective = re.search(r"^Effective Time:\S+, (\S+)$", printed.getvalue(), re.M)
        return Outcome(float(effective[1]), result.average_performance, result.num_fatal_failures, getattr(done, "restarts", 0),
                       sum(accounts) / end)

    def run_peers(self, model, trace):
        others = {"varuna": {"no_small_model_fallback": trace in SPOT}, "bamboo": {"steps_per_run": None} if trace in SPOT else {}}
        return {name: self.run(peer, model, trace, **others.get(name, {})) for name, peer in self.peers.items()}


class Comparison:
    """Of one model and one trace."""

    def __init__(self, artifact, inputs, model, trace):
        self.artifact, self.inputs, self.model, self.trace = artifact, inputs, model, trace
        self.name = f"oobleck-simulator-{MODELS[model]}-{(RATES | SPOT)[trace]}"
        self.costs = make_costs(inputs, model)
        self.peers = artifact.run_peers(model, trace)

    def run_ours(self, **changes):
        return self.artifact.run(self.artifact.ours, self.model, self.trace, costs=self.costs._replace(**changes))

    def check(self):
        """That what we put into the simulator is the recovery alone: with Oobleck's, and stages that are never lost, it is Oobleck."""
        one_stage = 1e-3  # nodes a replica, so that all are replicas of one stage
        ours = self.run_ours(keeps_rest=False, pause=round(1e3 * self.inputs["reconfiguration"][self.model]), fewest_nodes=one_stage)
        theirs = self.artifact.run(self.artifact.strict, self.model, self.trace)
        if ours != theirs:
            raise SystemExit(f"elastic: {self.name}: with Oobleck's recovery our simulator gives {ours}, not {theirs}")

    def row(self, suffix="", target=None, **changes):
        ours, oobleck = self.run_ours(**changes), self.peers["oobleck"]
        costs = self.costs._replace(**changes)
        speed = f"; samples per second {ours.samples_per_second:.4g}, Oobleck's {oobleck.samples_per_second:.4g}" * (self.trace in RATES)
        of = "of two" if math.isinf(costs.fewest_nodes) else f"of one for every {costs.fewest_nodes:g} nodes"
        lost = f"the share of the lost replica, {of}, is computed again of the step under way" if costs.keeps_rest else \
            "the step under way begins once more"
        return row(self.name + suffix, "effective_time", ours.effective, "", "more", target, None,
                   f"simulated, in Oobleck's artifact: step times, traces and accounts are its own; {lost}; {ours.losses} losses, each "
                   f"{self.inputs['detection_and_install']:g} s (measured, stop-worker's 99th percentile) and its reconfiguration of "
                   f"{self.inputs['reconfiguration'][self.model]:g} s; {ours.restarts} of them took a stage's last replica; peer: Oobleck "
                   f"(Varuna {self.peers['varuna'].effective:.3f}, Bamboo {self.peers['bamboo'].effective:.3f}){speed}",
                   peer=oobleck.effective)


def compare(artifact, inputs, quick):
    rows = []
    published = inputs["published_effective_time"]
    for model in MODELS:
        for trace in ["10m"] if quick else [*RATES, *SPOT]:
            one = Comparison(artifact, inputs, model, trace)
            say(f"elastic: {one.name}: {one.peers['oobleck']}")
            if trace == "10m" and model == "BERT-large" and one.peers["oobleck"].effective != published:
                raise SystemExit(f"elastic: Oobleck's simulator gives {one.peers['oobleck'].effective}, not {published} as its README says")
            if one.peers["oobleck"].overrun > 2:
                say(f"elastic: {one.name} is left out: with 15 nodes or fewer a step of this model takes 10^9 s in the artifact")
                continue
            one.check()
            rows.append(one.row(target=TARGETS.get((model, trace))))
            if (model, trace) in TARGETS:
                rows.append(one.row("-whole-step", keeps_rest=False))
                if model in inputs["fewest_nodes"]:
                    rows.append(one.row("-two-replicas", fewest_nodes=math.inf))
    return rows


def main():
    flags = read_flags(__doc__, simulator={"type": pathlib.Path, "default": os.environ.get("MOTLEY_OOBLECK_SIMULATOR"),
                                           "help": "folder of Oobleck's simulator"})
    if flags.simulator is None or not (flags.simulator / "oobleck_simulator.py").exists():
        say("elastic: rows oobleck-simulator-* are left out: MOTLEY_OOBLECK_SIMULATOR is not the folder of Oobleck's simulator, which is "
            "tools/simulator after git clone -b sosp23-artifact https://github.com/SymbioticLab/Oobleck")
        print_rows([])
        return
    print_rows(compare(Artifact(flags.simulator), read_inputs(), flags.quick))


if __name__ == "__main__":
    main()
