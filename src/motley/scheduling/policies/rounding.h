// GADGET's own way with a slot (Yu et al., INFOCOM 2022, algorithm 2, "LP-RS-MDE"), beside solve_slot: the relaxation
// chooses how large each job's ring is, a second one with which probability it goes where, and they are drawn at
// random.
//
// The relaxation (12) lets each part of a ring be spread over all nodes alike, whereupon no part of it has to go over
// a link: only what all nodes have together is binding, and where that is devices alone, its optimum gives them where
// one more has most utility.
//
// The second one, which Rost and Schmid made so that it can be taken apart (IFIP Networking 2018, arXiv 1803.03622),
// is, whatever its variables, a choice of probabilities for the valid mappings of each ring under which expected loads
// stay within what there is. It is solved as that here, by mappings. What is valid matters:
//
// - In the original each worker and each link of a ring has to fit on its own, so that a ring may be mapped to one
//   node that does not hold it. Mappings to one node load no link, and of each mapping's workers those on the
//   node with the lowest price are cheapest, so that some optimum consists of mappings to one node alone. Expected
//   loads stay within capacities; those that are drawn need not.
// - Where a mapping has to fit as a whole, it is a configuration: numbers of workers by node, with the uplinks that
//   they load (motley/scheduling/simulator/placement.h). There are too many of those to write them all down; they are
//   found as prices ask for them.
#pragma once

#include <vector>

#include "motley/base/random.h"
#include "motley/base/result.h"
#include "motley/scheduling/policies/slot.h"

namespace motley::scheduling {

enum class Mappings { kPartByPart, kWhole };

struct RelaxedSlot {
  std::vector<int> workers;  // of each job's ring; 0: it has none
  int largest_ring = 0;      // of those among which was chosen (Gamma)
  double selection = 0;      // the optimum of (12), which no answer to the slot exceeds
  double optimum = 0;        // with these rings
  struct Choice {
    Placement placement;
    double probability = 0;
  };
  std::vector<std::vector<Choice>> choices;  // of each job; their probabilities add up to 1 at most
};

// The utility of a ring is taken to be the same anywhere: as within a node. Errors: those of Program::maximise.
Result<RelaxedSlot> relax_slot(const SlotProblem& problem, Mappings mappings);

// A placement of each job at random; they need not fit together.
std::vector<Placement> round_at_random(const RelaxedSlot& slot, Random& random);

// The same, job after job in a random order, without those that do not fit beside the ones before.
std::vector<Placement> round_what_fits(const SlotProblem& problem, const RelaxedSlot& slot, Random& random);

}  // namespace motley::scheduling
