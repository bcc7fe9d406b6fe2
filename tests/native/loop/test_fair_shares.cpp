// Hours of a machine that owners share, with a clock of its own: who waits for how long, and who gets how much.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/tasks.h"
#include "loop/scheduler.h"
#include "loop/step_budget.h"

namespace corosrv {
namespace {

using State = Sequence::State;

// Somebody who asks again as soon as there is an answer.
struct Asker {
  uint64_t owner = 0;
  int32_t n_prompt = 1500;
  int32_t max_tokens = 16;
  int32_t priority = 5;
  int32_t tier = 0;
  double weight = 1;
  double begins_s = 0;
};

// Steps cost what they cost a small model on two cores. What a displaced sequence has computed is kept for it.
class SharedMachine {
 public:
  explicit SharedMachine(int32_t slots) : budget_(0.06, 512), scheduler(slots, 512) {}

  void add(const Asker& asker, int count = 1) {
    for (int i = 0; i < count; ++i) askers_.push_back({asker, nullptr, {}});
  }

  void run(double until_s) {
    while (now_s() < until_s) step();
  }

  double now_s() const { return seconds(now_ - begin_); }
  double had_s(uint64_t owner) const { return scheduler.ledger().rank(owner).virtual_s; }

  // Of all that this owner's tasks had, the one that so many exceed.
  double ttft_s(uint64_t owner, double exceeded_by) const {
    std::vector<double> all = ttfts_.at(owner);
    std::sort(all.begin(), all.end());
    const auto place = static_cast<size_t>(std::ceil((1 - exceeded_by) * static_cast<double>(all.size())));
    return all[std::max(place, size_t{1}) - 1];
  }

 private:
  struct Asking {
    Asker asker;
    Sequence* sequence;
    Clock::time_point asked;
    bool has_token = false;
  };

  void ask(Asking& asking) {
    Task task = make_task('p', static_cast<size_t>(asking.asker.n_prompt), asking.asker.max_tokens);
    task.sharing_scope.owner = asking.asker.owner;
    task.priority = asking.asker.priority;
    task.tier = asking.asker.tier;
    task.weight = asking.asker.weight;
    auto sequence = std::make_unique<Sequence>(Submission{std::move(task), make_reader(), now_}, vocabulary_, 100000,
                                               signals_, stats_);
    asking.sequence = sequence.get();
    asking.asked = now_;
    asking.has_token = false;
    scheduler.add(std::move(sequence));
  }

  void step() {
    for (Asking& asking : askers_) {
      if (asking.sequence == nullptr && now_s() >= asking.asker.begins_s) ask(asking);
    }
    if (Sequence* const sequence = scheduler.to_displace(now_)) {
      const auto held = held_.find(sequence);
      n_hasty += sequence->n_computed() - (held == held_.end() ? 0 : held->second) < 64 ? 1 : 0;
      held_[sequence] = sequence->n_computed();
      scheduler.displace(*sequence, now_);
      ++n_displaced;
    }
    scheduler.admit(now_);
    scheduler.for_each_running([this](Sequence& sequence) {
      if (sequence.state() != State::kStarting) return;
      const auto held = held_.find(&sequence);
      sequence.begin(held == held_.end() ? 0 : held->second);
    });
    const Plan plan = scheduler.plan(budget_.prompt_tokens(scheduler.n_decoding(), scheduler.n_prefilling()));
    const double step_s = 0.0018 + 0.00156 * plan.n_decode + 0.00059 * plan.n_prompt;
    if (!plan.items.empty()) scheduler.charge(plan.items, step_s, budget_.decode_row_s(), budget_.prompt_row_s());
    for (const Plan::Item& item : plan.items) compute(item);
    now_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(step_s));
    budget_.observe(plan.n_decode, plan.n_prompt, step_s);
    ++n_steps;
    note();
    const Scheduler::Swept swept = scheduler.sweep();
    for (const auto& sequence : swept.from_slots) held_.erase(sequence.get());
  }

  void compute(const Plan::Item& item) {
    const bool has_logits = item.n_tokens == item.sequence->n_pending();
    item.sequence->computed(item.n_tokens);
    if (!has_logits) return;
    const RowLogits row(logits_.data());
    item.sequence->choose(&row);
    item.sequence->take(now_);
  }

  void note() {
    double least = 1e300, most = 0;
    for (Asking& asking : askers_) {
      const Sequence* const sequence = asking.sequence;
      if (sequence == nullptr) continue;
      least = std::min(least, had_s(asking.asker.owner));
      most = std::max(most, had_s(asking.asker.owner));
      const uint64_t owner = asking.asker.owner;
      if (!asking.has_token && sequence->tokens().size() > static_cast<size_t>(asking.asker.n_prompt)) {
        asking.has_token = true;
        ttfts_[owner].push_back(seconds(now_ - asking.asked));
      }
      if (sequence->state() != State::kDone) continue;
      ++n_ended[owner];
      longest_s[owner] = std::max(longest_s[owner], seconds(now_ - asking.asked));
      asking.sequence = nullptr;
    }
    greatest_lead_s = std::max(greatest_lead_s, most - least);
  }

  const ByteVocabulary vocabulary_;
  std::vector<float> logits_ = std::vector<float>(static_cast<size_t>(vocabulary_.size()), 0.0f);
  Signals signals_;
  LoopStats stats_;
  StepBudget budget_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point now_ = begin_;
  std::vector<Asking> askers_;
  std::map<const Sequence*, int32_t> held_;
  std::map<uint64_t, std::vector<double>> ttfts_;

 public:
  std::map<uint64_t, int64_t> n_ended;   // by owner
  std::map<uint64_t, double> longest_s;  // from a task's coming to its end, by owner
  double greatest_lead_s = 0;            // of one owner to another
  int64_t n_displaced = 0, n_steps = 0,
          n_hasty = 0;  // hasty: displaced before it had computed 64 tokens since it began
  Scheduler scheduler;
};

// What a request costs that has the machine for itself.
double cost_s(const Asker& asker) { return 0.00059 * asker.n_prompt + (0.0018 + 0.00156) * asker.max_tokens; }

TEST("one client beside a hundred of another owner waits at most three times as long as alone for its first token") {
  for (const int32_t slots : {4, 32}) {
    SharedMachine quiet(slots), busy(slots);
    quiet.add({2});
    quiet.run(30);
    busy.add({1}, 100);
    busy.add({2, 1500, 16, 5, 0, 1, 10});
    busy.run(400);

    CHECK(busy.ttft_s(2, 0.01) <= 3 * quiet.ttft_s(2, 0.5));
    CHECK(busy.n_ended[1] > busy.n_ended[2]);
  }
}

TEST("owners that always have something to do are served alike, to less than two of the largest requests") {
  SharedMachine machine(8);
  const Asker largest{1, 1500, 150};
  machine.add(largest, 50);
  machine.add({2, 20, 300}, 20);
  machine.add({3, 300, 100}, 10);
  machine.run(400);

  CHECK(machine.greatest_lead_s < 2 * cost_s(largest));
  CHECK(machine.n_displaced > 0);
  CHECK_EQ(machine.n_hasty, int64_t{0});
  const double all_s = machine.had_s(1) + machine.had_s(2) + machine.had_s(3);
  CHECK(std::abs(all_s - machine.now_s()) < 0.001);  // every second of the machine is charged to somebody
}

TEST("an owner with three times the weight gets three times as much") {
  SharedMachine machine(4);
  machine.add({1, 100, 50}, 20);
  machine.add({2, 100, 50, 5, 0, 3}, 20);
  machine.run(300);

  const auto ratio = static_cast<double>(machine.n_ended[2]) / static_cast<double>(machine.n_ended[1]);
  CHECK(ratio > 2.8 && ratio < 3.2);
}

TEST("the last tier is starved for no longer than it takes to rise") {
  SharedMachine machine(4);
  machine.add({1, 200, 50}, 40);
  machine.add({2, 200, 50, 5, 9});
  machine.run(1200);

  CHECK(machine.n_ended[2] >= 4);
  CHECK(machine.longest_s[2] < 9 * seconds(WaitQueue::kTierWait) + 20);
}

TEST("a better tier waits for no more than it takes to displace somebody, and what that one has computed is kept") {
  SharedMachine machine(4);
  machine.add({1, 200, 2000, 5, 1}, 40);
  machine.add({2, 200, 20, 5, 0, 1, 10});
  machine.run(200);

  CHECK(machine.ttft_s(2, 0.01) < 1 + 2);  // until somebody has had its slot for a second, and then its prompt
  CHECK(machine.n_ended[1] > 0);
  CHECK(machine.n_displaced > 0);
  CHECK_EQ(machine.n_hasty, int64_t{0});
}

TEST("shares cost no throughput, and one owner's requests displace nobody") {
  SharedMachine one(8), many(8);
  one.add({1, 500, 60}, 40);
  for (uint64_t owner = 1; owner <= 40; ++owner) many.add({owner, 500, 60});
  one.run(300);
  many.run(300);

  int64_t n_many = 0;
  for (const auto& [owner, n_ended] : many.n_ended) n_many += n_ended;
  const auto ratio = static_cast<double>(n_many) / static_cast<double>(one.n_ended[1]);
  CHECK(ratio > 0.99 && ratio < 1.01);
  CHECK_EQ(one.n_displaced, int64_t{0});
}

std::vector<Task> long_tasks() {
  std::vector<Task> tasks{make_task('a', 100, 400), make_task('b', 100, 400), make_task('c', 100, 400)};
  tasks[1].sampling.temperature = 1;
  tasks[1].sampling.seed = 7;
  tasks[2].sampling.repeat_penalty = 1.3f;
  for (Task& task : tasks) {
    task.tier = 1;
    task.sampling.ignore_eos = true;
    task.sharing_scope.owner = 1;
  }
  return tasks;
}

Task urgent_task(Token name, int32_t max_tokens) {
  Task task = make_task(name, 10, max_tokens);
  task.sharing_scope.owner = 2;
  return task;
}

TEST("who loses its slot goes on where it was, says what it says alone, and computes nothing twice") {
  for (const int32_t cells : {0, 3000}) {
    const std::vector<Task> tasks = long_tasks();
    RunningLoop loop({3, 64, 60, 1 << 20, 1, false, 0, 0, cells});
    loop.backend.shared_cells = static_cast<size_t>(cells);
    loop.backend.gate.shut_after(100);
    std::vector<std::unique_ptr<Client>> clients;
    for (const Task& task : tasks) clients.push_back(loop.submit(task));
    loop.start();  // with all three in its first step
    REQUIRE(loop.backend.gate.wait_until_held());
    std::this_thread::sleep_for(Scheduler::kLeastTime);  // for which each keeps its slot in any case
    for (const Token name : {'x', 'y', 'z'}) clients.push_back(loop.submit(urgent_task(name, 50)));

    loop.backend.gate.open();

    size_t n_rows = 0;
    for (size_t i = 0; i < clients.size(); ++i) {
      CHECK(clients[i]->finish());
      if (i < tasks.size()) CHECK_EQ(clients[i]->text(), said_alone(tasks[i]));
      n_rows += static_cast<size_t>(clients[i]->answer().prompt_tokens + clients[i]->answer().n_tokens);
    }
    CHECK_EQ(loop.stats().preempted, uint64_t{3});
    size_t n_computed = 0;
    for (const auto& batch : loop.backend.batches()) n_computed += batch.size();
    CHECK(n_computed <= n_rows);
    CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  }
}

TEST("where nothing of what was computed can be kept, nobody loses a slot") {
  for (const bool can_save : {true, false}) {
    RunningLoop loop({1, 64, 60, 1 << 20});
    loop.backend.can_save = can_save;
    loop.backend.fails_to_save = true;
    loop.backend.gate.shut_after(100);
    loop.start();
    const auto running = loop.submit(long_tasks()[0]);
    REQUIRE(loop.backend.gate.wait_until_held());
    std::this_thread::sleep_for(Scheduler::kLeastTime);
    const auto urgent = loop.submit(urgent_task('x', 5));

    loop.backend.gate.open();

    CHECK(running->finish());
    CHECK(urgent->finish());
    CHECK_EQ(loop.stats().preempted, uint64_t{0});
  }
}

}  // namespace
}  // namespace corosrv
