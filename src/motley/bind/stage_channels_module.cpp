// Rows of tensors between ranks, where Python's pipelines send and receive them.
#include <torch/csrc/utils/pybind.h>

#include <ATen/ATen.h>
#include <pybind11/stl.h>

#include <array>
#include <deque>
#include <map>

#include "motley/bind/parts.h"
#include "motley/collective/stage_channels.h"

namespace motley::bind {
namespace {

namespace py = pybind11;

constexpr double kLeaveSeconds = 10;  // for what is still to be sent

// Contiguous tensors on the CPU, whose memory is held until its rows have gone or come: by other tensors over it that
// Python never sees, so that the thread that lets them go does not need its lock. One thread calls all of it; errors
// are final.
class StageChannels {
 public:
  StageChannels(std::shared_ptr<net::Session> session, const std::vector<int>& peers, double seconds)
      : session_(std::move(session)),
        channels_(value_or_raise(collective::StageChannels::connect(*session_, peers, Deadline::after(seconds)))) {}

  void send(int peer, std::uint64_t tag, const at::Tensor& rows) {
    auto held = std::make_shared<at::Tensor>(rows.detach());
    check(channels().send(peer, tag, bytes(*held), held));
  }
  // Into the tensor, once wait() has been called as often as this for the peer.
  void receive(int peer, std::uint64_t tag, const at::Tensor& into) {
    Expected& expected = expected_[peer];
    expected.tensors.push_back(into.detach());
    expected.last = value_or_raise(channels().receive(peer, tag, bytes(expected.tensors.back())));
  }
  // For what was asked for first of what has not been waited for.
  void wait(int peer, double seconds, const std::string& operation) {
    Expected& expected = expected_[peer];
    const std::uint64_t number = expected.last + 1 - expected.tensors.size();
    if (!channels().has_come(peer, number)) {
      const py::gil_scoped_release without_lock;
      check(channels().wait(peer, number, Deadline::after(seconds), [&] { return operation; }));
    }
    expected.tensors.pop_front();
  }
  // What the other ranks' messages say of this one.
  void set_phase(std::uint64_t step, std::size_t phase) {
    static constexpr std::array kPhases = {"forward", "backward", "loss", "evaluation"};
    session_->set_phase(step, kPhases.at(phase));
  }
  // In order: what was sent goes first.
  void leave() {
    if (channels_) (void)channels_->flush(Deadline::after(kLeaveSeconds));
    channels_.reset();
    expected_.clear();
    session_->leave();
  }

 private:
  struct Expected {
    std::deque<at::Tensor> tensors;  // not waited for yet
    std::uint64_t last = 0;          // the number of the last one
  };
  collective::StageChannels& channels() {
    MOTLEY_INVARIANT(channels_, "the channels were left");
    return *channels_;
  }
  static std::span<std::byte> bytes(const at::Tensor& rows) {
    TORCH_CHECK_VALUE(rows.is_cpu() && rows.is_contiguous(), "rows are not contiguous on the CPU");
    return {static_cast<std::byte*>(rows.data_ptr()), rows.nbytes()};
  }

  const std::shared_ptr<net::Session> session_;
  std::map<int, Expected> expected_;                     // by peer
  std::unique_ptr<collective::StageChannels> channels_;  // null once it has left; its thread ends first
};

}  // namespace

void add_stage_channels(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> without_lock;
  py::class_<StageChannels>(module, "StageChannels")
      .def(py::init<std::shared_ptr<net::Session>, const std::vector<int>&, double>(), py::arg("session"),
           py::arg("peers"), py::arg("seconds"), without_lock)
      .def("send", &StageChannels::send, py::arg("peer"), py::arg("tag"), py::arg("rows"), without_lock)
      .def("receive", &StageChannels::receive, py::arg("peer"), py::arg("tag"), py::arg("into"), without_lock)
      .def("wait", &StageChannels::wait, py::arg("peer"), py::arg("seconds"), py::arg("operation"))
      .def("set_phase", &StageChannels::set_phase, py::arg("step"), py::arg("phase"))
      .def("leave", &StageChannels::leave, without_lock);
}

}  // namespace motley::bind
