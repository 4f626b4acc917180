// "genetic": a population of type strings, as HeterPS's authors search: schemes are drawn, neighbouring layers of one
// type are merged into stages, each scheme is valued by its merged and provisioned plan, and the better ones are bred.
// Tournament selection, two-point crossover, mutation, and an elite that stays. No scheme is valued twice: a
// child that is known is mutated again.
#include <algorithm>
#include <map>
#include <utility>

#include "motley/planning/search/search.h"

namespace motley::planning {
namespace {

constexpr std::size_t kPopulation = 64;
constexpr std::size_t kElite = 2;       // that pass on as they are
constexpr std::size_t kTournament = 3;  // of which the best becomes a parent
constexpr double kCrossover = 0.9;      // of the children have two parents
constexpr std::size_t kPatience = 60;   // generations without a better plan after which it ends
constexpr int kGenerations = 400;
constexpr int kTries = 8;  // to make a child that is not known

struct Individual {
  Assignment genes;
  Score score;
};

bool better(const Individual& a, const Individual& b) {
  return a.score < b.score;
}

// The better of a few, of a population with the best first.
const Individual& select(const std::vector<Individual>& sorted, Random& random) {
  std::size_t best = sorted.size() - 1;
  for (std::size_t i = 0; i < kTournament; ++i) {
    best = std::min<std::size_t>(best, random.below(sorted.size()));
  }
  return sorted[best];
}

// Takes the layers between two points from the other parent.
void cross(Assignment& child, const Assignment& other, Random& random) {
  const std::size_t layers = child.type_of_layer.size();
  std::size_t from = random.below(layers);
  std::size_t to = random.below(layers);
  if (from > to) std::swap(from, to);
  for (std::size_t layer = from; layer <= to; ++layer) {
    child.type_of_layer[layer] = other.type_of_layer[layer];
    if (!child.cut_before.empty()) child.cut_before[layer] = other.cut_before[layer];
  }
}

}  // namespace

Result<Answer> plan_genetic(const Request& request) {
  const Problem& problem = request.problem;
  Random random(request.seed);
  Search search(request);
  std::map<Assignment, Score> known;
  std::vector<Individual> population;
  const auto add = [&](Assignment genes) {
    const auto [entry, is_new] = known.try_emplace(genes);
    if (is_new) entry->second = score(request, search, genes);
    population.push_back({std::move(genes), entry->second});
  };

  while (population.size() < kPopulation && !search.over()) {
    const auto created = static_cast<int>(population.size());
    add(created < problem.type_count() && created < static_cast<int>(kPopulation) / 2 ? all_on(problem, created)
                                                                                      : draw(problem, random));
  }
  std::stable_sort(population.begin(), population.end(), better);

  std::size_t stale = 0;
  for (int generation = 0; generation < kGenerations && stale < kPatience && !search.over(); ++generation) {
    const std::vector<Individual> parents = std::exchange(population, {});
    population.assign(parents.begin(), parents.begin() + kElite);
    while (population.size() < kPopulation && !search.over()) {
      Assignment child = select(parents, random).genes;
      if (random.uniform() < kCrossover) cross(child, select(parents, random).genes, random);
      mutate(problem, random, child);
      for (int tries = 1; tries < kTries && known.contains(child); ++tries) {
        mutate(problem, random, child);
      }
      add(std::move(child));
    }
    std::stable_sort(population.begin(), population.end(), better);
    stale = population.front().score < parents.front().score ? 0 : stale + 1;
  }
  return search.answer();
}

}  // namespace motley::planning
