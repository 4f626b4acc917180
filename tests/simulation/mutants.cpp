#include "tests/simulation/mutants.h"

#include <algorithm>
#include <cstring>

#include "motley/base/guard.h"

namespace motley::simulation {
namespace {

constexpr Guard kGuards[] = {
    {"file-aside", "a file is written under another name first, and the one before stands until it is whole"},
    {"file-rename", "a file that is whole gets its name"},
    {"file-fsync", "a file's bytes are on the disk before it gets its name"},
    {"folder-fsync", "a name that a file got is on the disk"},
    {"made-folder-fsync", "a folder that was made is on the disk"},
    {"checkpoint-aside", "a checkpoint is written in another folder first"},
    {"checkpoint-checksum", "a checkpoint's files have the checksums that were noted"},
    {"checkpoint-one-before", "where the newest checkpoint is damaged the one before it is read"},
    {"checkpoint-all-know", "a checkpoint counts as written once it is, for all ranks"},
    {"kill-lost-process", "a rank's process that counts as lost on this host is killed before others go on"},
    {"roster-majority-of-promises",
     "a proposal is made to members of whom a majority has promised to take no earlier one"},
    {"roster-majority-of-acceptances", "an epoch begins once a majority has accepted it"},
    {"roster-promise", "a member refuses proposals before the one that it has promised to wait for"},
    {"roster-own-ballot", "an answer counts only for the proposal that it answers"},
    {"roster-own-acceptance", "who has accepted members proposes these"},
    {"roster-best-acceptance", "who proposes takes over the latest members that others have accepted"},
    {"roster-past-epoch", "messages about an epoch that has begun already decide nothing"},
    {"roster-own-membership", "a rank that an epoch leaves out stops"},
    {"group-two-chunks", "an operation of the group has other memory than the one before it"},
    {"group-arrival", "an operation of the group counts those who have come to it"},
    {"reducer-all-arrived", "a bucket is summed up once all ranks' values are there"},
    {"reducer-all-reduced", "a bucket is read once all its parts are summed up"},
    {"reducer-round-over", "nobody takes a part of a round that is over"},
    {"reducer-claims-round", "the number of a part counts only for its round"},
    {"mean-no-weight", "what a rank without samples has in its buffer is not looked at"},
    {"kept-start-error", "a round that could not begin is forgotten once all begin anew"},
    {"server-all-arrived", "a server takes a step once all ranks' values are there, in shared memory"},
    {"server-all-received", "a server takes a step once all ranks' values are there, by connections"},
    {"server-bucket-updated", "weights are read once the server has updated them"},
    {"server-state-whole", "a rank takes a checkpoint of servers only once they have the state"},
    {"server-replaced-is-lost", "a server in another one's place does not stand for the one that was lost"},
    {"servers-told-by-who-knows", "a newcomer is told of the servers by a rank that knows them"},
    {"session-ended-for-server", "a job that a rank has ended for a lost server ends for all"},
    {"loop-same-step", "ranks that are a step behind do it before all go on"},
    {"loop-one-writer", "of who writes the run's files all hold what one of them knows"},
    {"loop-reduce-anew", "after a loss gradients are reduced anew"},
    {"loop-save-anew", "after a loss a checkpoint that was due is written anew by all"},
    {"loop-hand-over", "the lost ranks' samples of the step under way are handed to others"},
    {"loop-hand-over-next", "the same where the step was not begun yet"},
    {"loop-common-duties", "what one rank still has to do, all do"},
    {"loop-keep-to-present", "the batch is split among those who are there"},
    {"loop-meet-at-end", "all meet at the job's end before one leaves"},
    {"audit-counts-anew", "how often a sample was used is counted anew in each epoch of the data"},
    {"audit-goes-on", "the counts go on from those of the checkpoint"},
    {"audit-records", "what ranks have used in a step is counted"},
    {"elastic-all-epochs", "what was lost in each epoch since is handed over, not in the last one only"},
    {"launcher-newcomer-interrupted", "a newcomer that a stop has ended before it began ends nobody else"},
    {"launcher-free-rank", "a newcomer gets a rank that nobody has"},
    {"launcher-left", "a worker that was asked to leave is no failure"},
    {"launcher-too-late", "a newcomer that came too late is no failure"},
    {"store-synchronous", "a job that is acknowledged is on the disk"},
    {"controller-same-job", "a job that is submitted again is the same one"},
    // Chosen from the code alone, by somebody who had not seen the simulation.
    {"planted-acceptance-noted", "a member notes what it has accepted"},
    {"planted-newcomer-is-sure", "a newcomer follows an epoch once all its members have told of it, or after a while"},
    {"planted-newcomer-address", "a rank's address is that of the process that has it now"},
    {"planted-chunk-done-then-counted", "a part of a bucket counts as done after it is"},
    {"planted-own-message-gone", "a buffer is written again once its message has gone"},
    {"planted-handed-samples-once", "samples that were handed over are computed once"},
    {"planted-writer-is-there", "the rank that writes the files is there, and has something to write"},
    {"planted-good-checkpoint-stays", "a checkpoint that can be read is not written over"},
    {"planted-update-undone", "servers that are a step ahead of the ranks take it back"},
    {"planted-never-to-begin", "an attempt that is to end before it has begun never begins"},
};

const char* dropped = nullptr;

}  // namespace

std::span<const Guard> list_guards() {
  return kGuards;
}

bool drop_guard(const std::string& name) {
  const auto found = std::ranges::find(kGuards, name, &Guard::name);
  dropped = found == std::end(kGuards) ? nullptr : found->name;
  return name.empty() || dropped != nullptr;
}

bool is_dropped(const char* guard) {
  return dropped != nullptr && std::strcmp(guard, dropped) == 0;
}

}  // namespace motley::simulation
