// A decode loop in its thread, around a scripted model.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client.h"
#include "handover/inbox.h"
#include "loop/decode_loop.h"
#include "scripted_backend.h"
#include "tasks.h"

namespace corosrv {

// The time of a loop that passes only where a test says so: what its steps cost is then the same on a busy machine.
class ScriptedTime : public Tape {
 public:
  // The decode thread alone, as a scripted model does that computes.
  void pass(int64_t microseconds) { now_ += std::chrono::microseconds(microseconds); }

  Inbox::Mail take(Inbox& inbox, bool has_work, Clock::duration patience) override {
    return inbox.take(has_work, patience);
  }
  Clock::time_point now() override { return now_; }
  bool look(bool found) override { return found; }
  void plan(const StepShape&) override {}
  void batch(uint64_t) override {}
  void end(const TapedEnd&) override {}
  bool begins_anew() override { return false; }

 private:
  Clock::time_point now_ = Clock::now();
};

// A decode loop in its thread, around a scripted model that the test may set up before start().
class RunningLoop {
 public:
  explicit RunningLoop(DecodeLoop::Limits limits = {4, 64, 60}, size_t queue = 1000, int32_t context = 4096,
                       std::vector<std::string> words = {})
      : inbox(std::make_shared<Inbox>(queue + static_cast<size_t>(limits.slots))),
        backend(context, std::move(words)),
        limits_(limits) {}
  ~RunningLoop() { close("the test is over"); }

  void start() {
    loop_ = std::make_unique<DecodeLoop>(limits_, *inbox, backend, time.get(), draft.get());
    thread_ = std::thread([this] { loop_->run(); });
  }

  // Submits; null when refused, and `refusal` says why.
  std::unique_ptr<Client> submit(std::vector<Task> tasks, size_t limit_bytes = 1 << 20) {
    const size_t n_tasks = tasks.size();
    for (size_t i = 0; i < n_tasks; ++i) tasks[i].index = static_cast<int32_t>(i);
    auto reader = std::make_shared<Reader>(limit_bytes, inbox);
    refusal = inbox->submit(std::move(tasks), reader);
    return refusal.is_ok() ? std::make_unique<Client>(std::move(reader), n_tasks) : nullptr;
  }
  std::unique_ptr<Client> submit(Task task, size_t limit_bytes = 1 << 20) {
    return submit(std::vector<Task>{std::move(task)}, limit_bytes);
  }

  LoopStats stats() { return loop_->snapshot(); }
  std::string draft_trouble() { return loop_->draft_trouble(); }
  std::vector<SlotStatus> slots() { return loop_->slots(); }
  void set_side_process(int pidfd, SideShare share) { loop_->set_side_process(pidfd, share); }

  void close(const std::string& reason) {
    inbox->close(reason);  // before another step is taken
    backend.gate.open();
    if (thread_.joinable()) thread_.join();
  }

  const std::shared_ptr<Inbox> inbox;
  ScriptedBackend backend;
  std::unique_ptr<ScriptedBackend> draft;  // null: none guesses
  std::unique_ptr<ScriptedTime> time;      // null: that of the machine
  Status refusal = Status::ok();

 private:
  const DecodeLoop::Limits limits_;
  std::unique_ptr<DecodeLoop> loop_;
  std::thread thread_;
};

// What the scripted model says to this task when nothing else runs and nothing is shared; "" where no end comes.
inline std::string said_alone(const Task& task) {
  RunningLoop loop({1, 64, 60});
  loop.start();
  const auto client = loop.submit(task);
  return client != nullptr && client->finish() ? client->text() : "";
}

}  // namespace corosrv
