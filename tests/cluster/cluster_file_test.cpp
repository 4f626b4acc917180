// cluster.yaml reads back as it was written, its schema knows exactly its keys, and impossible clusters are refused.
#include "motley/cluster/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <nlohmann/json.hpp>
#include <set>

#include "motley/base/os/file.h"
#include "motley/base/random.h"

namespace motley::cluster {
namespace {

using ::testing::HasSubstr;

Delay random_delay(Random& random, Delay::Kind kind) {
  Delay delay;
  delay.kind = kind;
  delay.seconds = 0.001 + random.uniform();
  switch (kind) {
    case Delay::Kind::kUniform:
    case Delay::Kind::kNormal:
    case Delay::Kind::kGamma:
      delay.deviation = delay.seconds * (0.1 + 0.4 * random.uniform());
      break;
    case Delay::Kind::kBernoulli:
      delay.probability = random.uniform();
      break;
    case Delay::Kind::kFixed:
    case Delay::Kind::kExponential:
      break;
  }
  return delay;
}

// A cluster that uses every key of the file.
Cluster random_cluster(Random& random) {
  Cluster cluster;
  cluster.device_types = {{"cpu", DeviceKind::kCpu, 64, 1e9 * random.uniform(), random.uniform()},
                          {"a100", DeviceKind::kCuda, 64, 8e10, 3.5 * random.uniform(),
                           Speed{1 + 1e13 * random.uniform(), 1 + 1e12 * random.uniform(), 1e6 * random.uniform(),
                                 random.uniform(), random.uniform(), random.uniform()}}};
  cluster.nodes = {{"here",
                    "10.0.0.1",
                    {{"cpu", 1}, {"a100", 1 + static_cast<std::int64_t>(random.below(8))}},
                    1 + random.uniform() * 64,
                    1 + random.uniform() * 1e12},
                   {"there", "::1", {{"cpu", 2}}}};
  cluster.links = {{"here", "there", 1 + 1e9 * random.uniform(), random.uniform(), true}, {"here", "here", 1e10, 0}};
  for (int kind = 0; kind <= static_cast<int>(Delay::Kind::kBernoulli); ++kind) {
    Worker worker;
    worker.name = fmt::format("worker-{}", kind);
    worker.device = kind % 2 == 0 ? "cpu" : "a100";
    worker.node = "here";
    worker.threads = 1 + static_cast<std::int64_t>(random.below(8));
    worker.cores = {0, static_cast<std::int64_t>(1 + random.below(7))};
    worker.min_samples = static_cast<std::int64_t>(random.below(8));
    worker.max_samples = 8 + static_cast<std::int64_t>(random.below(100));
    worker.emulation = Emulation{
        1e-6 + random.uniform(),
        random_delay(random, static_cast<Delay::Kind>(kind)),
        {{3, random.uniform() + 1e-9, std::nullopt}, {9, std::nullopt, random_delay(random, Delay::Kind::kGamma)}}};
    cluster.workers.push_back(worker);
  }
  Worker plain;
  plain.name = "plain";
  plain.device = "cpu";
  cluster.workers.push_back(plain);
  return cluster;
}

TEST(ClusterFile, ReadsBackAsWritten) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    const Cluster cluster = random_cluster(random);
    const auto read = parse_cluster(to_yaml(cluster), "cluster.yaml");
    ASSERT_TRUE(read) << read.error().message << "\n" << to_yaml(cluster);
    EXPECT_EQ(*read, cluster) << to_yaml(cluster);
  }
}

TEST(ClusterFile, ReadsUnitsAndDefaultsAsUsersWriteThem) {
  const auto cluster = parse_cluster(R"(
version: 2
device_types:
  - {name: cpu, kind: cpu, memory: 24 GB, price_per_hour: 0.1}
nodes:
  - name: here
links:
  - {from: here, to: here, bandwidth: 1 Gb/s, latency: 50 us}
workers:
  - {name: fast, device: cpu, seconds_per_sample: 1 ms}
  - name: slow
    device: cpu
    seconds_per_sample: 4 ms
    delay: {distribution: exponential, mean: 20 ms}
    changes:
      - {from_step: 100, delay: 5 ms}
)",
                                     "cluster.yaml");
  ASSERT_TRUE(cluster) << cluster.error().message;
  EXPECT_EQ(cluster->device_type("cpu")->memory_bytes, 24e9);
  EXPECT_EQ(cluster->device_type("gpu"), nullptr);
  EXPECT_EQ(cluster->nodes[0].address, "127.0.0.1");
  EXPECT_EQ(cluster->links[0].bytes_per_second, 1.25e8);
  EXPECT_DOUBLE_EQ(cluster->links[0].latency_seconds, 50e-6);
  EXPECT_EQ(cluster->workers[0].emulation, (Emulation{0.001, {}, {}}));
  EXPECT_EQ(cluster->workers[0].max_samples, std::nullopt);
  EXPECT_EQ(cluster->workers[1].emulation->delay, (Delay{.kind = Delay::Kind::kExponential, .seconds = 0.02}));
  EXPECT_EQ(cluster->workers[1].emulation->changes[0].delay, Delay{.seconds = 0.005});
}

TEST(ClusterFile, RefusesWhatCannotBe) {
  const std::string types = "version: 2\ndevice_types: [{name: cpu, kind: cpu}]\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "version is missing"},
      {"version: 3\n" + types.substr(11), "version is '3'; accepted: an integer from 2 to 2"},
      {"version: 1\n" + types.substr(11),
       "version is '1'; accepted: 2, in which speed.fixed is now speed.layer_overhead"},
      {"version: 2\n", "device_types is missing"},
      {"version: 2\ndevice_types: [{name: a b, kind: tpu}]\n", "device_types[0].kind is 'tpu'"},
      {"version: 2\ndevice_types: [{name: a b, kind: cpu}]\n", "device_types[0].name is 'a b'"},
      {types + "nodes: [{name: n, cpus: 0}]\n", "nodes[0].cpus is '0'"},
      {types + "nodes: [{name: n}, {name: n}]\n", "nodes[1].name is 'n', which an earlier one has too"},
      {types + "nodes: [{name: n, devices: [{type: cpu, count: 3}]}]\n", "is 3, 2 more than device_types has of 'cpu'"},
      {types + "links: [{from: a, to: b, bandwidth: 1 Gb/s}]\n", "links[0].from is 'a'; accepted: none"},
      {"version: 2\ndevice_types: [{name: a, kind: gpu}]\n", "is 'gpu'; accepted, by PyTorch's names: cuda"},
      {types + "workers: [{name: w, device: gpu}]\n", "workers[0].device is 'gpu'; accepted: cpu"},
      {types + "workers: [{name: w, device: cpu, min_samples: 4, max_samples: 3}]\n",
       "max_samples is '3'; accepted: an integer from 4"},
      {types + "workers: [{name: w, device: cpu, seconds_per_sample: 0}]\n", "above 0"},
      {types + "workers: [{name: w, device: cpu, seconds_per_sample: 3 KB}]\n", "seconds_per_sample is '3 KB'"},
      {types + "workers: [{name: w, device: cpu, seconds_per_sample: 3}]\n", "accepted: a duration such as '250ms'"},
      {types + "workers: [{name: w, device: cpu, delay: 1}]\n", "delay needs seconds_per_sample"},
      {types + "workers: [{name: w, device: cpu, sped: 1}]\n", "workers[0].sped is an unknown key"},
      {types + "workers: [{name: w, device: cpu, cores: [1, 1]}]\n", "names a core twice"},
      {types + "workers: [{name: w, device: cpu, seconds_per_sample: 1 s, delay: {distribution: gama, mean: 1 s}}]\n",
       "is 'gama', did you mean 'gamma'?"},
      {types + "workers: [{name: w, device: cpu, seconds_per_sample: 1 s, changes: [{from_step: 5, delay: 1 s}, "
               "{from_step: "
               "5, delay: 2 s}]}]\n",
       "changes[1].from_step is '5'; accepted: an integer of at least 6"},
      {types + "workers: [{name: w, device: cpu, seconds_per_sample: 1 s, changes: [{from_step: 5}]}]\n",
       "changes[0] changes nothing"},
  };
  for (const auto& [text, expected] : cases) {
    const auto cluster = parse_cluster(text, "cluster.yaml");
    ASSERT_FALSE(cluster) << text;
    EXPECT_EQ(cluster.error().code, ErrorCode::kInvalidInput);
    EXPECT_THAT(cluster.error().message, HasSubstr(expected)) << text;
    EXPECT_THAT(cluster.error().message, HasSubstr("cluster.yaml"));
  }
}

// Adds "path.key" of every mapping of the document, with lists as "path[]".
void collect_keys(const YAML::Node& node, const std::string& path, std::set<std::string>& keys) {
  if (node.IsMap()) {
    for (const auto& entry : node) {
      const std::string key = path + "." + entry.first.Scalar();
      keys.insert(key);
      collect_keys(entry.second, key, keys);
    }
  } else if (node.IsSequence()) {
    for (const YAML::Node& element : node) {
      collect_keys(element, path + "[]", keys);
    }
  }
}

void collect_keys(const nlohmann::json& root, const nlohmann::json& schema, const std::string& path,
                  std::set<std::string>& keys) {
  if (schema.contains("$ref")) {
    const std::string reference = schema.at("$ref");
    collect_keys(root, root.at(nlohmann::json::json_pointer(reference.substr(1))), path, keys);
  }
  for (const nlohmann::json& option : schema.value("oneOf", nlohmann::json::array())) {
    collect_keys(root, option, path, keys);
  }
  if (schema.contains("items")) {
    collect_keys(root, schema.at("items"), path + "[]", keys);
  }
  const nlohmann::json properties = schema.value("properties", nlohmann::json::object());
  for (const auto& [name, property] : properties.items()) {
    keys.insert(path + "." + name);
    collect_keys(root, property, path + "." + name, keys);
  }
}

TEST(ClusterFile, EmulatedLinksAreThoseBetweenTheWorkersNodes) {
  Cluster cluster;
  cluster.nodes = {{"here", "10.0.0.1", {{"cpu", 2}, {"gpu", 1}}}, {"there", "10.0.0.2", {{"gpu", 2}}}};
  cluster.links = {{"here", "there", 5e6, 0, true}, {"here", "here", 1e9, 0}};
  EXPECT_EQ(cluster.node_with("cpu", 1)->name, "here");
  EXPECT_EQ(cluster.node_with("cpu", 2), nullptr);
  EXPECT_EQ(cluster.node_with("gpu", 0)->name, "here");
  EXPECT_EQ(cluster.node_with("gpu", 2)->name, "there");
  const Worker here{.name = "a", .device = "cpu", .node = "here"}, there{.name = "b", .device = "gpu", .node = "there"};
  EXPECT_EQ(cluster.emulated_rate(here, there), 5e6);
  EXPECT_EQ(cluster.emulated_rate(there, here), 5e6);
  EXPECT_EQ(cluster.emulated_rate(here, here), 0);
  EXPECT_EQ(cluster.emulated_rate(here, Worker{.name = "c", .device = "gpu"}), 0);
}

TEST(ClusterFile, TheSchemaKnowsExactlyTheKeysOfTheFile) {
  Random random(1);
  Cluster cluster = random_cluster(random);
  // Delays of all kinds in a change as well, so that every key is written in every place.
  cluster.workers.front().emulation->changes.push_back({20, 1.0, random_delay(random, Delay::Kind::kBernoulli)});
  std::set<std::string> written;
  collect_keys(YAML::Load(to_yaml(cluster)), "", written);

  const auto text = read_file(MOTLEY_SOURCE_FOLDER "/docs/schema/cluster.schema.json");
  ASSERT_TRUE(text) << text.error().message;
  const nlohmann::json schema = nlohmann::json::parse(*text);
  std::set<std::string> stated;
  collect_keys(schema, schema, "", stated);
  EXPECT_EQ(stated, written);
}

}  // namespace
}  // namespace motley::cluster
