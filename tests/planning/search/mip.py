"""The exact planner's answers, found again by mixed-integer programs that HiGHS solves.

The programs have their own equations of both cost models, and share nothing with the planner but the problems' numbers.
A binary variable stands for every possible stage; a path through the cuts makes a plan.

HeterPS's model: at a fixed rate every stage has a least number of devices, so that the least price of a plan of at least
that rate is a linear program over paths with limits of devices. It is compared with the planner's answer in two ways:
  most throughput   the planner's rate is met within the limits, and a rate higher by 1e-6 is not;
  lowest cost       at the planner's rate the least price is its price, and no other rate has a plan of less cost.

The pipeline's model: transfers depend on both ends and flow from a stage's kind to the next one's. Each layer has one
stage around it, so that "the stage around layer l" makes the bottleneck linear without large constants. Layers have no
parameters here, as exchanges go on beside the last backward, which is not linear:
  gpipe        the least step;
  1F1B         at the planner's bottleneck W, where every run of stages, there and back, must fit into W times its
               stages, the way there and back and m - 1 times W are a step that no plan has to exceed: the planner's is
               at most the least of those, and no shorter than the least way there and back alone.
"""
import json
import math
import os
import subprocess
import sys
import unittest

try:
    import highspy
except ImportError:
    highspy = None

INSTANCES = os.environ.get("MOTLEY_MIP_INSTANCES", "")
PART = int(os.environ.get("MOTLEY_MIP_PART", "1"))  # so many times fewer instances
CLOSE = 1e-6  # HiGHS's own tolerances


def instances(case, count):
    text = subprocess.run([INSTANCES, case, "0", str(count)], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in text.splitlines()]


class Program:
    """min cost x, rows low <= a x <= high."""

    def __init__(self):
        self.cost, self.low, self.high, self.whole = [], [], [], []
        self.rows = []

    def variable(self, cost=0.0, high=math.inf, whole=False):
        self.cost.append(cost)
        self.low.append(0.0)
        self.high.append(high)
        self.whole.append(whole)
        return len(self.cost) - 1

    def row(self, low, terms, high):
        self.rows.append((low, high, {v: a for v, a in terms.items() if a != 0}))

    def solve(self):
        """The lowest cost, or None where nothing is feasible."""
        model = highspy.HighsLp()
        model.num_col_ = len(self.cost)
        model.num_row_ = len(self.rows)
        model.col_cost_, model.col_lower_ = self.cost, self.low
        model.col_upper_ = [highspy.kHighsInf if math.isinf(h) else h for h in self.high]
        model.integrality_ = [highspy.HighsVarType.kInteger if w else highspy.HighsVarType.kContinuous for w in self.whole]
        model.row_lower_ = [-highspy.kHighsInf if math.isinf(r[0]) else r[0] for r in self.rows]
        model.row_upper_ = [highspy.kHighsInf if math.isinf(r[1]) else r[1] for r in self.rows]
        start, index, value = [0], [], []
        for _, _, terms in self.rows:
            index += terms.keys()
            value += terms.values()
            start.append(len(index))
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = start, index, value
        solver = highspy.Highs()
        for option, setting in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 1e-9), ("mip_abs_gap", 0.0),
                                ("mip_feasibility_tolerance", 1e-9), ("primal_feasibility_tolerance", 1e-9)):
            solver.setOptionValue(option, setting)
        solver.passModel(model)
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"HiGHS ended with {solver.modelStatusToString(status)}")
        return solver.getInfo().objective_function_value


def add(terms, variable, factor):
    terms[variable] = terms.get(variable, 0.0) + factor


# --- HeterPS's steady state ---------------------------------------------------------------------------------------


def least_replicas(fixed, divided, seconds, most):
    """The least k with fixed + divided / k <= seconds, or None."""
    for k in range(1, most + 1):
        if fixed + divided / k <= seconds:
            return k
    return None


def least_price(problem, rate):
    """Of the plans of at least that rate that the counts allow; None where there is none."""
    seconds = 1 / rate
    types, layers, batch = problem["types"], problem["layers"], problem["profile_batch"]
    count = len(layers)
    program = Program()
    enter, leave = {}, {}  # (cut, type before it) -> stages that begin there, end there
    used = [{} for _ in types]
    for t, kind in enumerate(types):
        for before in [None, *range(len(types))]:
            if before == t:
                continue
            for first in range(count):
                if (before is None) != (first == 0):
                    continue
                compute_fixed = compute_divided = data_fixed = data_divided = 0.0
                for last in range(first, count):
                    layer, on = layers[last], layers[last]["on"][t]
                    compute = sum(on[way][0] + on[way][1] * batch for way in ("forward", "backward")) / batch
                    data = 2 * (batch * layer["sparse"] + layer["parameters"]) / kind["bandwidth"] / batch
                    if last == first and before is not None:
                        data += 2 * problem["cut"][first] / problem["links"][before * len(types) + t][0]
                    compute_fixed += compute * (1 - on["alpha"])
                    compute_divided += compute * on["alpha"]
                    data_fixed += data * (1 - on["beta"])
                    data_divided += data * on["beta"]
                    needed = [least_replicas(compute_fixed, compute_divided, seconds, kind["count"]),
                              least_replicas(data_fixed, data_divided, seconds, kind["count"])]
                    if None in needed:
                        break  # longer stages only take longer
                    k = max(needed)
                    x = program.variable(k * kind["price"], 1.0, True)
                    used[t][x] = k
                    enter.setdefault((first, before), {})[x] = 1.0
                    leave.setdefault((last + 1, t), {})[x] = 1.0
    program.row(1, enter.get((0, None), {}), 1)
    program.row(1, {x: 1.0 for t in range(len(types)) for x in leave.get((count, t), {})}, 1)
    for cut in range(1, count):
        for t in range(len(types)):
            terms = dict(leave.get((cut, t), {}))
            for x in enter.get((cut, t), {}):
                add(terms, x, -1.0)
            program.row(0, terms, 0)
    for t, kind in enumerate(types):
        program.row(-math.inf, used[t], kind["count"])
    return program.solve()


# --- the pipeline ---------------------------------------------------------------------------------------------------


class Pipeline:
    """All stages and transfers of a pipeline problem, in seconds of a micro-batch."""

    def __init__(self, problem):
        self.problem = problem
        self.samples = problem["batch"] / problem["micro_batches"]
        self.count = len(problem["layers"])
        self.kinds = [(t, k) for t, kind in enumerate(problem["types"]) for k in range(1, kind["count"] + 1)]

    def stage(self, first, last, kind, recompute):
        """(forward, backward, exchange, price, memory without activations, activations of a micro-batch)."""
        t, k = kind
        device, layers = self.problem["types"][t], self.problem["layers"][first:last + 1]
        share = self.samples / k

        def seconds(way):
            return sum(layer["on"][t][way][0] + layer["on"][t][way][1] * share for layer in layers)

        sparse = sum(layer["sparse"] for layer in layers) * share / device["bandwidth"]
        parameters = sum(layer["parameters"] for layer in layers)
        activations = share * sum(layer["activations"] for layer in layers)
        forward = seconds("forward") + sparse
        backward = seconds("backward") + (seconds("forward") if recompute else 0) + sparse
        if k == 1 or parameters == 0:
            exchange = 0.0
        elif device["ring"]:
            exchange = 2 * (k - 1) * (parameters / (k * device["bandwidth"]) + device["latency"])
        else:
            exchange = parameters / device["bandwidth"] + 2 * device["latency"]
        once = self.problem["per_parameter"] * parameters
        if recompute:
            once, activations = once + activations, share * self.problem["cut"][first]
        return forward, backward, exchange, k * device["price"], once, activations

    def transfer(self, cut, kind, following):
        bandwidth, latency = self.problem["links"][kind[0] * len(self.problem["types"]) + following[0]]
        ends = [count * self.problem["types"][type_]["bandwidth"] for type_, count in (kind, following)]
        return latency + self.samples * self.problem["cut"][cut] / min(bandwidth * min(kind[1], following[1]), *ends)

    def least_latency(self, price_cap, pace=None):
        """GPipe: the least step. With a pace, 1F1B: the least step less (m - 1) pace of plans with W <= pace."""
        micro_batches = self.problem["micro_batches"]
        program = Program()
        latency = program.variable(1.0)
        forward_pace = program.variable(micro_batches - 1.0) if pace is None else None
        backward_pace = program.variable(micro_batches - 1.0) if pace is None else None
        stages, transfers = [], []  # (variable, first, last, forward, backward, exchange), (variable, cut, seconds)
        begin, end, price, used = {}, {}, {}, [{} for _ in self.problem["types"]]
        for first in range(self.count):
            for last in range(first, self.count):
                for kind in self.kinds:
                    for recompute in ([False, True] if self.problem["recompute"] else [False]):
                        forward, backward, exchange, hourly, once, held = self.stage(first, last, kind, recompute)
                        memory = self.problem["types"][kind[0]]["memory"]
                        if memory and once + micro_batches * held > memory * (1 + 1e-9):
                            continue
                        if pace is not None and forward + backward > pace * (1 + 1e-9):
                            continue
                        x = program.variable(0.0, 1.0, True)
                        stages.append((x, first, last, forward, backward, exchange))
                        begin.setdefault((first, kind), {})[x] = 1.0
                        end.setdefault((last + 1, kind), {})[x] = 1.0
                        price[x] = hourly
                        used[kind[0]][x] = kind[1]
        for cut in range(1, self.count):
            flows = {}
            for kind in self.kinds:
                for following in self.kinds:
                    seconds = self.transfer(cut, kind, following)
                    if pace is None or seconds <= pace * (1 + 1e-9):
                        y = program.variable(0.0, 1.0)
                        transfers.append((y, cut, seconds))
                        flows[kind, following] = y
            for kind in self.kinds:
                terms = dict(end.get((cut, kind), {}))
                for following in self.kinds:
                    if (kind, following) in flows:
                        terms[flows[kind, following]] = -1.0
                program.row(0, terms, 0)
                terms = dict(begin.get((cut, kind), {}))
                for before in self.kinds:
                    if (before, kind) in flows:
                        terms[flows[before, kind]] = -1.0
                program.row(0, terms, 0)
        program.row(1, {x: 1.0 for kind in self.kinds for x in begin.get((0, kind), {})}, 1)
        program.row(1, {x: 1.0 for kind in self.kinds for x in end.get((self.count, kind), {})}, 1)
        if price_cap < 1e299:
            program.row(-math.inf, price, price_cap * (1 + 1e-9))
        for t, kind in enumerate(self.problem["types"]):
            program.row(-math.inf, used[t], kind["count"])

        for layer in range(self.count):
            # Forward to the stage around this layer, its round trip to the last stage and back, and its exchange.
            way = {latency: -1.0}
            forwards, backwards = {forward_pace: -1.0}, {backward_pace: -1.0}
            for x, first, last, forward, backward, exchange in stages:
                if last < layer:
                    way[x] = forward
                    continue
                way[x] = forward + backward
                if first <= layer:
                    way[x] += exchange
                    forwards[x], backwards[x] = forward, backward
            for y, cut, seconds in transfers:
                way[y] = seconds if cut <= layer else 2 * seconds
            program.row(-math.inf, way, 0)
            if pace is None:
                program.row(-math.inf, forwards, 0)
                program.row(-math.inf, backwards, 0)
            # The run from the stage around this layer to the stage around another, there and back.
            for other in range(layer, self.count if pace is not None else layer):
                excess = {x: forward + backward - pace for x, first, last, forward, backward, _ in stages
                          if last >= layer and first <= other}
                excess |= {y: 2 * seconds for y, cut, seconds in transfers if layer < cut <= other}
                program.row(-math.inf, excess, pace * 1e-9)
        if pace is None:
            for cut in range(1, self.count):
                for held in (forward_pace, backward_pace):
                    terms = {y: seconds for y, at, seconds in transfers if at == cut}
                    terms[held] = -1.0
                    program.row(-math.inf, terms, 0)
        return program.solve()

    def find_rate(self, stages):
        """W of a plan under 1F1B."""
        plan = [(first, last, (t, k), bool(recompute)) for first, last, t, k, recompute in stages]
        pace = 0.0
        for a in range(len(plan)):
            there_and_back = 0.0
            for b, (first, last, kind, recompute) in enumerate(plan[a:], a):
                there_and_back += sum(self.stage(first, last, kind, recompute)[:2])
                pace = max(pace, there_and_back / (b - a + 1))
                if b + 1 < len(plan):
                    transfer = self.transfer(last + 1, kind, plan[b + 1][2])
                    there_and_back += 2 * transfer
                    pace = max(pace, transfer)
        return pace


@unittest.skipUnless(highspy, "needs the Python package highspy")
class Mip(unittest.TestCase):
    def solved(self, case, count):
        """The instances with a plan that the planner says is optimal: at least half of them."""
        count //= PART
        answers = instances(case, count)
        feasible = [answer for answer in answers if answer["stages"] and answer["proved"]]
        self.assertGreaterEqual(len(feasible), count // 2)
        slowest = max(answer["seconds"] for answer in answers)
        print(f"{case}: {len(feasible)} of {count} with a proved plan, the planner took up to {slowest:.3f} s", file=sys.stderr)
        return feasible

    def test_most_throughput(self):
        for answer in self.solved("heterps-throughput", 32):
            with self.subTest(seed=answer["seed"]):
                cap = answer["price_cap"] * (1 + CLOSE)
                met = least_price(answer["problem"], answer["throughput"] * (1 - CLOSE))
                self.assertIsNotNone(met)
                self.assertLessEqual(met, cap)
                higher = least_price(answer["problem"], answer["throughput"] * (1 + CLOSE))
                self.assertTrue(higher is None or higher > answer["price_cap"])

    def test_lowest_cost(self):
        for answer in self.solved("heterps-cost", 32):
            with self.subTest(seed=answer["seed"]):
                rate = answer["throughput"]
                self.assertAlmostEqual(least_price(answer["problem"], rate * (1 - 1e-9)) / answer["price"], 1, delta=CLOSE)
                for factor in (0.7, 0.95, 1.1):
                    other = max(answer["min_throughput"], rate * factor)
                    price = least_price(answer["problem"], other)
                    if price is not None and price <= answer["price_cap"]:
                        cost = answer["problem"]["job"] / other / 3600 * price
                        self.assertGreaterEqual(cost, answer["cost"] * (1 - CLOSE))

    def test_gpipe(self):
        for answer in self.solved("gpipe", 8):
            with self.subTest(seed=answer["seed"]):
                step = Pipeline(answer["problem"]).least_latency(answer["price_cap"])
                self.assertAlmostEqual(step / answer["step"], 1, delta=CLOSE)

    def test_1f1b(self):
        for answer in self.solved("1f1b", 8):
            with self.subTest(seed=answer["seed"]):
                pipeline = Pipeline(answer["problem"])
                pace = pipeline.find_rate(answer["stages"])
                others = answer["problem"]["micro_batches"] - 1
                at_pace = pipeline.least_latency(answer["price_cap"], pace) + others * pace
                self.assertLessEqual(answer["step"], at_pace * (1 + CLOSE))
                without_limit = pipeline.least_latency(answer["price_cap"], 1e6 * pace)
                self.assertGreaterEqual(answer["step"], without_limit * (1 - CLOSE))


if __name__ == "__main__":
    unittest.main()
