// Open MPI as a peer: MPI_Allreduce of float32 values among processes that mpirun starts, one timed batch per line.
//
//   mpirun -np RANKS openmpi_allreduce BYTES
//
// Each line "COUNT" on standard input runs COUNT all-reduces; the answer is the seconds per all-reduce of the slowest
// rank. All ranks begin a round at once. End of input ends the processes. Prints "ready" first.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

// Ranks that wait for a command sleep: MPI's own waits would take the cores from whoever is measured meanwhile.
long receive_command(int rank) {
  long count = 0;
  if (rank == 0 && std::scanf("%ld", &count) != 1) count = 0;
  MPI_Request request;
  MPI_Ibcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD, &request);
  for (int done = 0;;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) return count;
    ::usleep(1000);
  }
}

double time_round(std::vector<float>& values, int rank) {
  std::ranges::fill(values, static_cast<float>(rank + 1));  // as in training, just written; not counted
  MPI_Barrier(MPI_COMM_WORLD);
  const double began = MPI_Wtime();
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  return MPI_Wtime() - began;
}

}  // namespace

int main(int count_of_arguments, char** arguments) {
  MPI_Init(&count_of_arguments, &arguments);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<float> values(std::strtoul(arguments[1], nullptr, 10) / sizeof(float));
  time_round(values, rank);
  if (rank == 0) {
    std::puts("ready");
    std::fflush(stdout);
  }
  while (const long count = receive_command(rank)) {
    double total = 0;
    for (long round = 0; round < count; ++round) total += time_round(values, rank);
    double slowest = 0;
    MPI_Reduce(&total, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
      std::printf("%.9f\n", slowest / static_cast<double>(count));
      std::fflush(stdout);
    }
  }
  MPI_Finalize();
}
