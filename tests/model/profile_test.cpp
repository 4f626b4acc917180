// A profile reads back as it was written, its file is what the schema says and nothing else, and what is computed in
// place of measurements follows the roofline.
#include "motley/model/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "motley/base/os/file.h"
#include "tests/model/random_graph.h"

namespace motley::model {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

// A positive number of any size.
double any_size(Random& random) {
  return std::ldexp(0.5 + random.uniform(), static_cast<int>(random.below(1200)) - 600);
}

Profile random_profile(std::uint64_t seed) {
  Random random(seed);
  Profile profile{.graph = random_graph(seed), .batch = any_size(random)};
  profile.graph.source = "quotes \" and \\ and ümlauts";
  const auto origin = [&] { return static_cast<Origin>(random.below(4)); };
  for (const char* type : {"cpu", "gpu"}) {
    DeviceProfile device{.type = type,
                         .origin = origin(),
                         .rule = "drawn",
                         .threads = 2,
                         .compute_fraction = random.uniform(),
                         .communication_fraction = random.uniform(),
                         .fractions_origin = origin(),
                         .fractions_rule = "drawn too"};
    for (std::size_t i = 0; i < profile.graph.layers.size(); ++i) {
      LayerTime time{.forward = {any_size(random), random.uniform()}, .backward = {0, any_size(random)}};
      for (std::uint64_t j = 0; j < random.below(4); ++j) {
        time.measurements.push_back({any_size(random), any_size(random), any_size(random), random.uniform()});
      }
      time.update_seconds = any_size(random);
      device.layers.push_back(time);
    }
    profile.devices.push_back(device);
  }
  profile.links = {{"cpu", "gpu", any_size(random), any_size(random), origin()},
                   {"gpu", "gpu", any_size(random), 0, origin()}};
  return profile;
}

// Every field that there is has a value that is written.
Json complete() {
  const std::string text = R"({
    "version": 2,
    "graph": {"name": "net", "source": "a paper", "input_bytes": 8, "layers": [
      {"name": "first", "kind": "embedding", "inputs": [], "parameters": 1, "activation_bytes": 2, "inner_bytes": 3,
       "flops": 4, "lookups": 5,
       "embedding_row_bytes": 6, "num_embeddings": 7, "parameter_shapes": "8x4, 8"},
      {"name": "second", "kind": "loss", "inputs": [0]}],
      "distinct_lookups": [{"batch_size": 4, "share": 0.75}]},
    "batch_size": 16,
    "state_arrays": 2,
    "devices": [{"type": "gpu", "origin": "scaled", "rule": "half of cpu", "threads": 3, "compute_fraction": 0.5,
      "communication_fraction": 1, "fractions_origin": "fitted", "fractions_rule": "1 and 2 workers", "layers": [
        {"forward": {"fixed": 0.1, "per_sample": 0.01}, "backward": {"fixed": 0.2, "per_sample": 0.02},
         "measurements": [{"batch_size": 4, "forward_seconds": 1, "backward_seconds": 2, "spread": 0.1}],
         "update_seconds": 0.03, "spread": 0.05},
        {"forward": {}, "backward": {}}],
      "overheads": {"data": {"fixed": 0.3, "per_sample": 0.04}, "framework_fraction": 0.5},
      "noise": {"pass_spread": 0.06, "drift": -0.07, "load_average": 1.5, "others_fraction": 0.25,
                "stolen_fraction": 0.125}}],
    "links": [{"from": "gpu", "to": "gpu", "bytes_per_second": 1e9, "latency_seconds": 1e-6, "origin": "measured"}]
  })";
  return Json::parse(text);
}

std::string outcome(const Json& json) {
  const auto profile = parse_profile(json.dump(), "net.json");
  return profile ? "accepted" : profile.error().message;
}

TEST(Profile, ReadsBackAsWritten) {
  for (int seed = 0; seed < 200; ++seed) {
    const Profile profile = random_profile(seed);
    const auto again = parse_profile(to_json(profile), "again.json");
    ASSERT_TRUE(again) << again.error().message;
    ASSERT_EQ(*again, profile) << "seed " << seed;
  }
}

TEST(Profile, ReadsEachFieldIntoItsPlace) {
  const auto profile = parse_profile(complete().dump(), "net.json");
  ASSERT_TRUE(profile) << profile.error().message;
  EXPECT_EQ(profile->batch, 16);
  EXPECT_EQ(profile->state_arrays, 2);
  EXPECT_EQ(profile->graph.name, "net");
  EXPECT_EQ(profile->graph.source, "a paper");
  EXPECT_EQ(profile->graph.input_bytes, 8);
  EXPECT_EQ(profile->graph.layers[0], (Layer{.name = "first",
                                             .kind = LayerKind::kEmbedding,
                                             .parameters = 1,
                                             .activation_bytes = 2,
                                             .inner_bytes = 3,
                                             .flops = 4,
                                             .lookups = 5,
                                             .row_bytes = 6,
                                             .table_rows = 7,
                                             .parameter_shapes = "8x4, 8"}));
  EXPECT_EQ(profile->graph.layers[1], (Layer{.name = "second", .kind = LayerKind::kLoss, .inputs = {0}}));
  EXPECT_EQ(profile->graph.distinct_lookups, (std::vector<DistinctLookups>{{4, 0.75}}));
  const DeviceProfile* device = profile->device("gpu");
  ASSERT_NE(device, nullptr);
  EXPECT_EQ(profile->device("tpu"), nullptr);
  EXPECT_EQ(*device, (DeviceProfile{.type = "gpu",
                                    .origin = Origin::kScaled,
                                    .rule = "half of cpu",
                                    .threads = 3,
                                    .compute_fraction = 0.5,
                                    .communication_fraction = 1,
                                    .fractions_origin = Origin::kFitted,
                                    .fractions_rule = "1 and 2 workers",
                                    .layers = {{{0.1, 0.01}, {0.2, 0.02}, {{4, 1, 2, 0.1}}, 0.03, 0.05}, {}},
                                    .overheads = {{0.3, 0.04}, 0.5},
                                    .noise = Noise{0.06, -0.07, 1.5, 0.25, 0.125}}));
  EXPECT_DOUBLE_EQ(device->layers[0].backward.at(10), 0.4);
  EXPECT_EQ(profile->links, (std::vector<ProfiledLink>{{"gpu", "gpu", 1e9, 1e-6, Origin::kMeasured}}));
}

// Walks the schema and a complete file side by side. Of every object: the file's keys are the schema's properties, a
// key may be left out exactly where the schema does not require it, and no other key may be there. Of every choice:
// each of its values is accepted. Of every number: exactly those within the bounds.
class SchemaWalk {
 public:
  SchemaWalk() : file_(complete()) {
    schema_ = Json::parse(*read_file(std::string(MOTLEY_SOURCE_FOLDER) + "/docs/schema/profile.schema.json"));
  }
  void run() { visit(schema_, Json::json_pointer()); }

 private:
  using Pointer = Json::json_pointer;

  static std::string with(Json file, const std::function<void(Json&)>& change) {
    change(file);
    return outcome(file);
  }
  void visit(const Json& given, const Pointer& at) {
    const Json& schema =
        given.contains("$ref") ? schema_.at(Pointer(given.at("$ref").get<std::string>().substr(1))) : given;
    SCOPED_TRACE(at.to_string());
    if (schema.contains("properties")) {
      visit_object(schema, at);
    } else if (schema.contains("items")) {
      EXPECT_THAT(with(file_, [&](Json& file) { file[at] = 3; }), HasSubstr("is 3; accepted is an array"));
      // What of these is accepted depends on those beside them.
      if (at == Pointer("/graph/distinct_lookups")) return;
      for (std::size_t i = 0; i < file_[at].size() && i < 1; ++i) {
        visit(schema.at("items"), at / i);
      }
    } else if (schema.contains("enum")) {
      for (const Json& choice : schema.at("enum")) {
        EXPECT_EQ(with(file_, [&](Json& file) { file[at] = choice; }), "accepted");
      }
      EXPECT_THAT(with(file_, [&](Json& file) { file[at] = "guessed"; }),
                  AllOf(HasSubstr(R"(is "guessed"; accepted is )"), HasSubstr(schema.at("enum").back().dump())));
    } else if (schema.value("type", "") == "number") {
      visit_number(schema, at);
    } else if (schema.value("type", "") == "string") {
      EXPECT_THAT(with(file_, [&](Json& file) { file[at] = 3; }), HasSubstr("is 3; accepted is a text"));
    }
  }
  void visit_object(const Json& schema, const Pointer& at) {
    EXPECT_EQ(schema.at("additionalProperties"), false);
    EXPECT_THAT(with(file_, [&](Json& file) { file[at]["unasked"] = 1; }), HasSubstr("unasked'; accepted "));
    EXPECT_THAT(with(file_, [&](Json& file) { file[at] = "text"; }), HasSubstr("accepted is an object"));
    for (const auto& [key, value] : schema.at("properties").items()) {
      SCOPED_TRACE(key);
      ASSERT_TRUE(file_[at].contains(key));
      const Json& required = schema.at("required");
      const bool is_required = std::find(required.begin(), required.end(), key) != required.end();
      const std::string without = with(file_, [&, name = key](Json& file) { file[at].erase(name); });
      EXPECT_THAT(without, is_required ? HasSubstr("is missing") : HasSubstr("accepted"));
      EXPECT_EQ(without == "accepted", !is_required) << without;
      visit(value, at / key);
    }
    for (const auto& [key, value] : file_[at].items()) {
      EXPECT_TRUE(schema.at("properties").contains(key)) << key;
    }
  }
  void visit_number(const Json& schema, const Pointer& at) {
    const auto of = [&](const Json& value) { return with(file_, [&](Json& file) { file[at] = value; }); };
    EXPECT_EQ(of(1), "accepted");
    EXPECT_EQ(of(0.25), "accepted");
    const bool has_no_bound = !schema.contains("minimum") && !schema.contains("exclusiveMinimum");
    EXPECT_EQ(of(0) == "accepted", schema.contains("minimum") || has_no_bound);
    EXPECT_EQ(of(1.5) == "accepted", !schema.contains("maximum"));
    EXPECT_THAT(of(-0.5), has_no_bound ? HasSubstr("accepted") : HasSubstr("is -0.5; accepted is a"));
    EXPECT_THAT(of("12"), HasSubstr(R"(is "12"; accepted is a)"));
    EXPECT_THAT(of(nullptr), HasSubstr("is null; accepted is a"));
  }

  Json schema_;
  Json file_;
};

TEST(Profile, FileIsWhatItsSchemaSays) {
  EXPECT_EQ(outcome(complete()), "accepted");
  SchemaWalk().run();
}

TEST(Profile, RefusalsNameFileFieldValueAndWhatIsAccepted) {
  const auto of = [](const char* pointer, const Json& value) {
    Json file = complete();
    file[Json::json_pointer(pointer)] = value;
    return outcome(file);
  };
  EXPECT_EQ(of("/devices/0/layers/0/forward/fixed", -1),
            "net.json: field 'devices[0].layers[0].forward.fixed' is -1; accepted is a finite number, 0 or more");
  EXPECT_EQ(of("/version", 3), "net.json: field 'version' is 3; accepted is 2");
  EXPECT_THAT(of("/version", 1), HasSubstr("'version' is 1; accepted is 2, in which batch is now batch_size, "));
  EXPECT_EQ(
      of("/batch_sizes", 2),
      "net.json: unknown field 'batch_sizes'; accepted are version, graph, batch_size, state_arrays, devices, links; "
      "did you mean 'batch_size'?");
  EXPECT_EQ(of("/devices/0/origin", "made-up"),
            "net.json: field 'devices[0].origin' is \"made-up\"; accepted is "
            "\"measured\", \"fitted\", \"scaled\", \"published\"");
  EXPECT_THAT(of("/graph/distinct_lookups/0/batch_size", 1),
              HasSubstr("net.json: graph 'net': field 'distinct_lookups[0].batch_size' is 1; accepted is a finite "
                        "number above 1"));
  EXPECT_THAT(of("/graph/distinct_lookups/0/share", 0.2),
              HasSubstr("field 'distinct_lookups[0].share' is 0.2; accepted is a number from 0.25 to 1"));
  EXPECT_THAT(of("/graph/distinct_lookups/0/share", 1.5), HasSubstr("'graph.distinct_lookups[0].share' is 1.5"));
  EXPECT_THAT(of("/graph/distinct_lookups/0/shares", 1), HasSubstr("unknown field"));
  EXPECT_THAT(of("/graph/layers/1/inputs", {1}), HasSubstr("net.json: graph 'net': field 'layers[1].inputs'"));
  EXPECT_THAT(of("/graph/layers/1/inputs", {0.5}),
              HasSubstr("'graph.layers[1].inputs[0]' is 0.5; accepted is an integer"));
  EXPECT_THAT(of("/graph/layers/1/name", "first"), HasSubstr("'layers[1].name' is 'first'"));
  EXPECT_THAT(
      of("/devices/0/layers", Json::array()),
      HasSubstr("'devices[0].layers' of 'gpu' has 0 elements; accepted is one for each of the graph's 2 layers"));
  EXPECT_THAT(of("/devices/1", complete()["devices"][0]), HasSubstr("'devices[1].type' is 'gpu'"));
  EXPECT_THAT(of("/links/0/to", "tpu"),
              HasSubstr("'links[0].to' is 'tpu'; accepted are the types of the devices: gpu"));
  EXPECT_THAT(of("/links/1", complete()["links"][0]), HasSubstr("'links[1]' is between 'gpu' and 'gpu' once more"));

  const auto text = [](const std::string& content) {
    const auto profile = parse_profile(content, "net.json");
    EXPECT_FALSE(profile);
    EXPECT_EQ(profile.error().code, ErrorCode::kInvalidInput);
    return profile.error().message;
  };
  EXPECT_THAT(text(""), HasSubstr("net.json: this is not JSON"));
  EXPECT_THAT(text("[1]"), HasSubstr("net.json: the whole is [1]; accepted is an object"));
  EXPECT_THAT(text(R"({"version": 2, "batch_size": NaN})"), HasSubstr("net.json: this is not JSON"));
  EXPECT_THAT(text(R"({"version": 2, "batch_size": 1e999})"), HasSubstr("net.json: this is not JSON"));
  EXPECT_THAT(text(R"({"version": 1, "version": 1})"), HasSubstr("\"version\" is given twice"));
  EXPECT_THAT(text(std::string(100000, '[')), HasSubstr("net.json: "));
  const auto absent = read_profile("there/is/none.json");
  ASSERT_FALSE(absent);
  EXPECT_THAT(absent.error().message, HasSubstr("there/is/none.json"));
}

TEST(Profile, EstimateIsTheRoofline) {
  const Graph graph{
      .name = "two",
      .input_bytes = 100,
      .layers = {{.name = "lookup", .activation_bytes = 40, .lookups = 3, .row_bytes = 4},
                 {.name = "fc", .inputs = {0}, .parameters = 1000, .activation_bytes = 60, .flops = 500}}};
  const double batch = 10;
  const Profile profile = estimate(graph,
                                   {{.type = "slow-memory",
                                     .flops_per_second = 1e6,
                                     .bytes_per_second = 1e3,
                                     .layer_overhead_seconds = 0.5,
                                     .lookups_per_second = 100},
                                    {.type = "slow-arithmetic",
                                     .flops_per_second = 10,
                                     .bytes_per_second = 1e9,
                                     .lookups_per_second = 1e9,
                                     .compute_fraction = 0.9,
                                     .communication_fraction = 0.8}},
                                   batch);
  const auto* memory = profile.device("slow-memory");
  // 10 samples: 0.5 s, (100 + 40) B and 3 rows a sample; then 4000 B once and (40 + 60) B a sample.
  EXPECT_DOUBLE_EQ(memory->layers[0].forward.at(batch), 0.5 + 1.4 + 0.3);
  EXPECT_DOUBLE_EQ(memory->layers[0].backward.at(batch), 0.5 + 2 * (1.4 + 0.3));
  EXPECT_DOUBLE_EQ(memory->layers[1].forward.at(batch), 0.5 + 4 + 1);
  EXPECT_DOUBLE_EQ(memory->layers[1].backward.at(batch), 0.5 + 2 * (4 + 1));
  EXPECT_EQ(memory->origin, Origin::kScaled);
  const auto* arithmetic = profile.device("slow-arithmetic");
  EXPECT_DOUBLE_EQ(arithmetic->layers[1].forward.at(batch), 500);
  EXPECT_DOUBLE_EQ(arithmetic->layers[1].backward.at(batch), 1000);
  EXPECT_EQ(arithmetic->compute_fraction, 0.9);
  EXPECT_EQ(arithmetic->communication_fraction, 0.8);
  EXPECT_TRUE(parse_profile(to_json(profile), "estimate.json"));
}

// Three layers and the loss, in round numbers.
Profile with_overheads() {
  Profile profile{.batch = 10};
  for (const char* name : {"first", "second", "third", kStepLayer}) {
    profile.graph.layers.push_back({.name = name});
    if (profile.graph.layers.size() > 1) {
      profile.graph.layers.back().inputs = {static_cast<int>(profile.graph.layers.size()) - 2};
    }
  }
  DeviceProfile device{.type = "cpu"};
  device.layers = {{{0, 1}, {0, 1}, {}}, {{0, 3}, {0, 3}, {}}, {{0, 1}, {0, 1}, {}}, {{5, 0}, {}, {}, 7}};
  device.layers[1].measurements = {{10, 30, 30, 0.2}};
  device.layers[2].measurements = {{10, 10, 10, 0.4}};
  device.overheads = {.data = {0, 2}, .framework_fraction = 0.5};
  profile.devices = {device};
  return profile;
}

TEST(Profile, OverheadsArePartOfTheLayersWhereTheyOccurAndKeptApart) {
  const Profile planned = without_step_layer(with_overheads());
  ASSERT_EQ(planned.graph.layers.size(), 3U);
  const std::vector<LayerTime>& layers = planned.devices[0].layers;
  // Of 100 s in all layers 20, 60 and 20 are the layers' own, and the framework takes half of each besides.
  const double own[] = {20, 60, 20}, overhead[] = {20 + 10, 30, 10 + 5};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(layers[i].own_seconds(10), own[i]);
    EXPECT_DOUBLE_EQ(layers[i].overhead.at(10), overhead[i]);
    EXPECT_DOUBLE_EQ(layers[i].forward.at(10) + layers[i].backward.at(10), own[i] + overhead[i]);
  }
  EXPECT_DOUBLE_EQ(planned.devices[0].once_seconds, 7);
  EXPECT_EQ(without_step_layer(planned), planned) << "once is enough";
  const Profile coarse = coarsen(planned, 2);
  EXPECT_DOUBLE_EQ(coarse.devices[0].layers[0].own_seconds(10) + coarse.devices[0].layers[1].own_seconds(10), 100);
  EXPECT_DOUBLE_EQ(coarse.devices[0].once_seconds, 7);
  EXPECT_EQ(describe_overheads(with_overheads(), with_overheads().devices[0]),
            "loss 5 s, data 20 s, framework 50 s of a pass of 10 samples; other work 7 s of a step");
}

TEST(Profile, SpreadsOfLayersThatAreJoinedAreWeighedByTheirTime) {
  const Profile whole = coarsen(without_step_layer(with_overheads()), 1);
  // 0 of 20 s, 0.2 of 60 s and 0.4 of 20 s.
  EXPECT_DOUBLE_EQ(whole.devices[0].layers[0].relative_spread(), (0.2 * 60 + 0.4 * 20) / 100);
}

TEST(Profile, CoarseningSumsTimes) {
  for (int seed = 0; seed < 50; ++seed) {
    Profile profile = random_profile(seed);
    for (DeviceProfile& device : profile.devices) {
      for (LayerTime& time : device.layers) {  // comparable sizes, so that sums can be compared
        time = {{std::fmod(time.forward.fixed, 1.0), time.forward.per_sample}, {0.25, 0.5}, time.measurements};
      }
    }
    profile.batch = 8;
    const Profile coarse = coarsen(profile, 3);
    ASSERT_EQ(coarse.graph.layers.size(), std::min<std::size_t>(3, profile.graph.layers.size()));
    const auto again = parse_profile(to_json(coarse), "coarse.json");
    ASSERT_TRUE(again) << again.error().message;
    for (std::size_t device = 0; device < profile.devices.size(); ++device) {
      for (const double batch : {1.0, 8.0}) {
        double before = 0;
        double after = 0;
        for (const LayerTime& time : profile.devices[device].layers) {
          before += time.forward.at(batch) + 3 * time.backward.at(batch);
        }
        for (const LayerTime& time : coarse.devices[device].layers) {
          after += time.forward.at(batch) + 3 * time.backward.at(batch);
        }
        ASSERT_NEAR(after, before, 1e-9 * before);
      }
    }
  }
}

TEST(Profile, SaysWhenItIsToBeMeasuredAgain) {
  EXPECT_FALSE(is_too_noisy({.pass_spread = 0.05, .drift = -0.05, .load_average = 3, .others_fraction = 0.1}));
  EXPECT_TRUE(is_too_noisy({.others_fraction = 0.15, .stolen_fraction = 0.1}));
  EXPECT_TRUE(is_too_noisy({.pass_spread = 0.4}));
  EXPECT_TRUE(is_too_noisy({.drift = -0.3}));
  EXPECT_TRUE(is_too_noisy({.drift = 2.1}));
}

}  // namespace
}  // namespace motley::model
