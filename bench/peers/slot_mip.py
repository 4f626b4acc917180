"""Bounds of slot problems by a mixed-integer program (HiGHS): a problem a line as JSON, the bound a line back.

A problem has servers [devices, uplink, rack], racks [uplink], and jobs [reserve, values]: values[reach][k] is what k
workers are worth in a ring within one server (0), within one rack (1) or over racks (2). A job has at most one pair of
reach and k; its workers are y on each server. A server where all of them are is `home`; one that its ring leaves is
`left`; racks likewise.
"""

import json
import os
import sys

import highspy

# HiGHS prints a line about itself as a solver is made: the answers have the output of before to themselves.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Program:
    def __init__(self):
        self.utility, self.high, self.rows = [], [], []

    def variable(self, high, utility=0.0):
        self.utility.append(utility)
        self.high.append(high)
        return len(self.utility) - 1

    def at_most(self, high, terms):
        self.rows.append((-highspy.kHighsInf, high, terms))

    def equal(self, value, terms):
        self.rows.append((value, value, terms))

    def bound(self, seconds):
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.utility), len(self.rows)
        model.sense_ = highspy.ObjSense.kMaximize
        model.col_cost_, model.col_lower_, model.col_upper_ = self.utility, [0.0] * len(self.utility), self.high
        model.integrality_ = [highspy.HighsVarType.kInteger] * len(self.utility)
        model.row_lower_ = [low for low, _, _ in self.rows]
        model.row_upper_ = [high for _, high, _ in self.rows]
        start, index, value = [0], [], []
        for _, _, terms in self.rows:
            for variable, factor in terms:
                index.append(variable)
                value.append(factor)
            start.append(len(index))
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = start, index, value
        solver = highspy.Highs()
        for option, setting in (("output_flag", False), ("time_limit", seconds), ("mip_rel_gap", 1e-6)):
            solver.setOptionValue(option, setting)
        solver.passModel(model)
        solver.run()
        return solver.getInfo().mip_dual_bound


def bound(problem, seconds):
    program = Program()
    servers, racks = problem["servers"], problem["racks"]
    on_server = [[] for _ in servers]
    over_server = [[] for _ in servers]
    over_rack = [[] for _ in racks]
    for reserve, values in problem["jobs"]:
        choices = [[(k, program.variable(1, value)) for k, value in enumerate(row) if k > 0 and value > 0] for row in values]
        program.at_most(1, [(v, 1) for row in choices for _, v in row])
        y = []
        for s, (devices, _, rack) in enumerate(servers):
            most = min(devices, len(values[0]) - 1)
            y.append((program.variable(most), program.variable(1), program.variable(1), most, rack))
            count, home, left, _, _ = y[-1]
            program.at_most(0, [(count, 1), (home, -most), (left, -most)])
            program.at_most(0, [(left, 1)] + [(v, -1) for row in choices[1:] for _, v in row])
            on_server[s].append((count, 1))
            over_server[s].append((left, reserve))
        program.equal(0, [(home, 1) for _, home, _, _, _ in y] + [(v, -1) for _, v in choices[0]])
        r = [(program.variable(1), program.variable(1)) for _ in racks]
        for count, home, _, most, rack in y:
            program.at_most(0, [(count, 1), (home, -most), (r[rack][0], -most), (r[rack][1], -most)])
        program.equal(0, [(home, 1) for home, _ in r] + [(v, -1) for _, v in choices[1]])
        for rack, (_, left) in enumerate(r):
            program.at_most(0, [(left, 1)] + [(v, -1) for _, v in choices[2]])
            over_rack[rack].append((left, reserve))
        program.equal(0, [(count, 1) for count, _, _, _, _ in y] + [(v, -k) for row in choices for k, v in row])
    for s, (devices, uplink, _) in enumerate(servers):
        program.at_most(devices, on_server[s])
        program.at_most(uplink, over_server[s])
    for rack, uplink in enumerate(racks):
        program.at_most(uplink, over_rack[rack])
    return program.bound(seconds)


for line in sys.stdin:
    print(bound(json.loads(line), float(sys.argv[1])), file=ANSWERS, flush=True)
