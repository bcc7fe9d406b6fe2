#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "fakes/client.h"
#include "fakes/tasks.h"
#include "loop/scheduler.h"
#include "model/embedded_rows.h"

namespace corosrv {
namespace {

using State = Sequence::State;

// A scheduler and the sequences it was given, in order of arrival; computes plans as the decode loop would.
class Driven {
 public:
  Driven(int32_t slots, int32_t rows, int32_t shared_cells = 0) : scheduler(slots, rows, false, shared_cells) {}

  Sequence* add(size_t n_prompt, int32_t max_tokens = -1, uint64_t owner = 0, int32_t priority = 5) {
    Task task = make_task('p', n_prompt, max_tokens);
    task.sharing_scope.owner = owner;
    task.priority = priority;
    return add(std::move(task));
  }

  // Adds a prompt of an image that is read in one piece, and a token.
  Sequence* add_image(int32_t n_rows) {
    Task task = make_task('p', 1);
    task.prompt.insert(task.prompt.begin(), static_cast<size_t>(n_rows), -2);
    const RowSegment segment{n_rows, true, n_rows, {}};
    const std::vector<float> numbers(static_cast<size_t>(n_rows), 0.5f);
    task.rows = std::make_shared<EmbeddedRows>(task.prompt, 1, numbers, std::vector<RowSegment>{segment});
    return add(std::move(task));
  }

  Sequence* add(Task task) {
    auto sequence = std::make_unique<Sequence>(Submission{std::move(task), make_reader(), now_}, vocabulary_, 100000,
                                               signals_, stats_);
    Sequence* added = sequence.get();
    scheduler.add(std::move(sequence));
    return added;
  }

  void pass(Clock::duration duration) { now_ += duration; }
  Clock::time_point now() const { return now_; }

  // Those who start begin from nothing.
  size_t admit() {
    const size_t n_started = scheduler.admit(now_ += std::chrono::milliseconds(1));
    scheduler.for_each_running([](Sequence& sequence) {
      if (sequence.state() == State::kStarting) sequence.begin(0);
    });
    return n_started;
  }

  // Adds a sequence that is past its prompt.
  Sequence* add_decoding(int32_t max_tokens = -1, int32_t priority = 5) {
    Sequence* sequence = add(1, max_tokens, 0, priority);
    CHECK_EQ(admit(), size_t{1});
    compute({sequence, 1});
    return sequence;
  }

  void compute(const Plan::Item& item) {
    const bool has_logits = item.n_tokens == item.sequence->n_pending();
    item.sequence->computed(item.n_tokens);
    std::vector<float> logits(static_cast<size_t>(vocabulary_.size()), 0.0f);
    logits['x'] = 1;
    if (!has_logits) return;
    choose_next(*item.sequence, logits);
    item.sequence->take(now_);
  }
  void compute(const Plan& plan) {
    for (const Plan::Item& item : plan.items) compute(item);
  }

  // The slots that became free.
  std::vector<int32_t> sweep() {
    std::vector<int32_t> slots;
    for (const auto& sequence : scheduler.sweep().from_slots) slots.push_back(sequence->slot());
    return slots;
  }

 private:
  const ByteVocabulary vocabulary_;
  Signals signals_;
  LoopStats stats_;
  Clock::time_point now_ = Clock::now();

 public:
  Scheduler scheduler;
};

int32_t tokens_of(const Plan& plan, const Sequence* sequence) {
  for (const Plan::Item& item : plan.items) {
    if (item.sequence == sequence) return item.n_tokens;
  }
  return 0;
}

TEST("running sequences get their token first, prompts what is left of the rows") {
  Driven driven(4, 10);
  Sequence* prompt = driven.add(100);
  driven.admit();
  const Sequence* one = driven.add_decoding();
  const Sequence* two = driven.add_decoding();

  const Plan plan = driven.scheduler.plan(1000);

  REQUIRE(plan.items.size() == 3);
  CHECK(plan.items[0].sequence == one && plan.items[0].n_tokens == 1);
  CHECK(plan.items[1].sequence == two && plan.items[1].n_tokens == 1);
  CHECK(plan.items[2].sequence == prompt && plan.items[2].n_tokens == 8);
  CHECK_EQ(plan.n_decode, 2);
  CHECK_EQ(plan.n_prompt, 8);
  CHECK_EQ(driven.scheduler.n_decoding(), 2);
}

TEST("prompts take no more than the budget") {
  Driven driven(4, 100);
  driven.add(80);
  driven.add(80);
  driven.admit();
  driven.add_decoding();

  CHECK_EQ(driven.scheduler.plan(20).n_prompt, 20);
  CHECK_EQ(driven.scheduler.plan(1).n_prompt, 1);
  CHECK_EQ(driven.scheduler.plan(0).n_prompt, 0);
}

TEST("the prompt that started first gets half, the shortest the rest") {
  Driven driven(4, 100);
  const Sequence* oldest = driven.add(1000);
  driven.admit();
  const Sequence* longer = driven.add(500);
  const Sequence* shortest = driven.add(30);
  driven.admit();

  const Plan plan = driven.scheduler.plan(81);

  CHECK_EQ(tokens_of(plan, oldest), 41);
  CHECK_EQ(tokens_of(plan, shortest), 30);
  CHECK_EQ(tokens_of(plan, longer), 10);
}

TEST("an image that is read in one piece is planned whole, and the oldest prompt has its half all the same") {
  Driven driven(4, 10);
  Sequence* const oldest = driven.add(50);
  driven.admit();
  Sequence* const image = driven.add_image(30);
  driven.admit();

  const Plan plan = driven.scheduler.plan(10);

  CHECK_EQ(tokens_of(plan, image), 30);
  CHECK_EQ(tokens_of(plan, oldest), 5);
  CHECK_EQ(plan.n_prompt, 35);
  driven.compute(plan);
  CHECK_EQ(tokens_of(driven.scheduler.plan(10), image), 1);
}

TEST("of the oldest prompt an image is planned whole, and others wait for the next step") {
  Driven driven(4, 10);
  Sequence* const image = driven.add_image(30);
  driven.admit();
  Sequence* const other = driven.add_image(20);
  driven.admit();

  const Plan plan = driven.scheduler.plan(10);

  CHECK_EQ(tokens_of(plan, image), 30);
  CHECK_EQ(tokens_of(plan, other), 0);
}

TEST("of images that are read in one piece, one alone exceeds a step's budget, and those that fit go beside it") {
  Driven driven(4, 40);
  std::vector<Sequence*> images;
  for (const int32_t n_rows : {30, 20, 8}) {
    images.push_back(driven.add_image(n_rows));
    driven.admit();
  }

  const Plan plan = driven.scheduler.plan(40);

  CHECK_EQ(tokens_of(plan, images[0]), 30);
  CHECK_EQ(tokens_of(plan, images[1]), 0);
  CHECK_EQ(tokens_of(plan, images[2]), 8);
  driven.compute(plan);
  CHECK_EQ(tokens_of(driven.scheduler.plan(40), images[1]), 20);
}

TEST(
    "a second image that does not fit waits behind the oldest prompt's image, and behind one beside the oldest "
    "prompt") {
  Driven images(4, 40);
  Sequence* const first = images.add_image(30);
  images.admit();
  Sequence* const second = images.add_image(20);
  images.admit();
  Driven beside_text(4, 100);
  beside_text.add(500);
  beside_text.admit();
  Sequence* const longer = beside_text.add_image(45);
  Sequence* const shorter = beside_text.add_image(30);
  beside_text.admit();

  const Plan plan = images.scheduler.plan(40), other_plan = beside_text.scheduler.plan(100);

  CHECK_EQ(tokens_of(plan, first), 30);
  CHECK_EQ(tokens_of(plan, second), 0);
  CHECK_EQ(tokens_of(other_plan, shorter), 30);
  CHECK_EQ(tokens_of(other_plan, longer), 0);
}

TEST("what the others leave goes to the oldest prompt as well") {
  Driven driven(4, 100);
  const Sequence* oldest = driven.add(1000);
  driven.admit();
  const Sequence* short_one = driven.add(5);
  driven.admit();

  const Plan plan = driven.scheduler.plan(80);

  CHECK_EQ(tokens_of(plan, oldest), 75);
  CHECK_EQ(tokens_of(plan, short_one), 5);
}

TEST("a short prompt passes a long one") {
  Driven driven(4, 64);
  Sequence* long_one = driven.add(10000);
  driven.admit();
  Sequence* short_one = driven.add(60);
  driven.admit();

  driven.compute(driven.scheduler.plan(64));
  driven.compute(driven.scheduler.plan(64));

  CHECK_EQ(short_one->state(), State::kDecoding);
  CHECK_EQ(long_one->n_computed(), 64 + 4);
}

TEST("a long prompt that a short one waits for is read as if it were short") {
  Driven driven(4, 200);
  driven.add(1000);
  driven.admit();
  Sequence* leader = driven.add(500);
  driven.admit();
  const Sequence* other = driven.add(60);
  driven.admit();
  driven.add(50);
  driven.scheduler.admit(Clock::now());
  driven.scheduler.for_each_running([&](Sequence& sequence) {
    if (sequence.state() == State::kStarting) sequence.follow(leader, 40);
  });

  const Plan plan = driven.scheduler.plan(100);

  CHECK_EQ(tokens_of(plan, leader), 50);
  CHECK_EQ(tokens_of(plan, other), 0);
}

TEST("only what another sequence is sure to compute is waited for, and never in a circle") {
  Driven driven(4, 64);
  Sequence* first = driven.add(100);
  Sequence* second = driven.add(100);
  Sequence* third = driven.add(100);
  driven.scheduler.admit(Clock::now());

  CHECK(driven.scheduler.leader_of(*second).sequence == nullptr);  // nobody knows where to begin yet
  first->begin(0);
  CHECK(driven.scheduler.leader_of(*second).sequence == first);
  CHECK_EQ(driven.scheduler.leader_of(*second).n_tokens, size_t{100});
  second->follow(first, 99);
  third->follow(second, 99);
  second->follow(nullptr, 0);
  first->set_paused(true);
  CHECK(driven.scheduler.leader_of(*second).sequence == nullptr);  // the third waits for the second
}

TEST("a preempted sequence is the first to get a slot again, and nobody waits for it any more") {
  Driven driven(2, 64);
  Sequence* first = driven.add_decoding();
  Sequence* second = driven.add(50);
  driven.scheduler.admit(Clock::now());
  second->follow(first, 10);
  Sequence* third = driven.add(1);

  driven.scheduler.preempt(*first);

  CHECK(second->leader() == nullptr);
  CHECK_EQ(first->state(), State::kWaiting);
  CHECK_EQ(driven.admit(), size_t{1});
  CHECK_EQ(first->slot(), 0);
  CHECK_EQ(third->state(), State::kWaiting);
}

TEST("a paused sequence lends its slot only while others wait, and asks for one when it can go on") {
  Driven driven(1, 64);
  Sequence* stalled = driven.add_decoding();
  stalled->set_paused(true);
  CHECK(driven.scheduler.idle_holder() == nullptr);
  Sequence* other = driven.add(1);
  REQUIRE(driven.scheduler.idle_holder() == stalled);

  driven.scheduler.preempt(*stalled);
  CHECK_EQ(driven.admit(), size_t{1});
  CHECK_EQ(driven.scheduler.n_parked(), size_t{1});
  CHECK(driven.scheduler.idle_holder() == nullptr);
  driven.scheduler.unpark();
  CHECK_EQ(driven.scheduler.n_parked(), size_t{1});
  stalled->set_paused(false);
  driven.scheduler.unpark();
  CHECK_EQ(driven.scheduler.n_parked(), size_t{0});

  other->finish(Finish::kCancelled);
  driven.sweep();
  CHECK_EQ(driven.admit(), size_t{1});
  CHECK_EQ(stalled->slot(), 0);
}

TEST("while memory is short as many run as fit, and one more each time that one has ended") {
  Driven driven(4, 64);
  for (int i = 0; i < 4; ++i) driven.add_decoding();
  driven.scheduler.preempt(*driven.scheduler.first_to_give_way());
  driven.scheduler.hold_admission();

  CHECK_EQ(driven.admit(), size_t{0});
  CHECK_EQ(driven.scheduler.n_running(), size_t{3});
  driven.scheduler.first_to_give_way()->finish(Finish::kCancelled);
  driven.sweep();
  driven.add(1);
  CHECK_EQ(driven.admit(), size_t{2});
  CHECK_EQ(driven.scheduler.n_running(), size_t{4});
}

TEST("who shares cells starts when its prompt fits, and 64 tokens more of each that has as many to come") {
  for (const size_t n_prompt : {526, 527}) {
    Driven driven(4, 64, 1000);
    driven.add(400, 10);
    CHECK_EQ(driven.admit(), size_t{1});
    driven.add(n_prompt);

    CHECK_EQ(driven.admit(), size_t{n_prompt == 526 ? 1u : 0u});
    CHECK_EQ(driven.scheduler.lacks(0), false);
    CHECK_EQ(driven.scheduler.lacks(1000), true);
  }
}

TEST("nobody passes the one that waits for cells, and a whole context starts alone") {
  Driven driven(4, 64, 1000);
  Sequence* first = driven.add(300);
  Sequence* whole = driven.add(999);
  Sequence* small = driven.add(1, 1);
  CHECK_EQ(driven.admit(), size_t{1});

  first->finish(Finish::kCancelled);
  driven.sweep();

  CHECK_EQ(driven.admit(), size_t{1});
  CHECK_EQ(whole->state(), State::kPrefilling);
  CHECK_EQ(small->state(), State::kWaiting);
}

TEST("who is paused gives way first, then who started last") {
  Driven driven(3, 64);
  driven.add_decoding();
  Sequence* second = driven.add_decoding();
  Sequence* third = driven.add_decoding();

  CHECK(driven.scheduler.first_to_give_way() == third);
  second->set_paused(true);
  CHECK(driven.scheduler.first_to_give_way() == second);
}

TEST("a gap between slots in use is shown once it has stayed for a while") {
  Driven driven(4, 64);
  Sequence* low = driven.add_decoding();
  Sequence* middle = driven.add_decoding();
  Sequence* high = driven.add_decoding();
  middle->finish(Finish::kCancelled);
  driven.sweep();
  CHECK(driven.scheduler.above_gap() == nullptr);
  for (int i = 0; i < 2; ++i) driven.scheduler.plan(1);

  REQUIRE(driven.scheduler.above_gap() == high);
  CHECK_EQ(driven.scheduler.slot_of_gap(), 1);
  driven.scheduler.move(*high, 1);

  CHECK_EQ(high->slot(), 1);
  CHECK(driven.scheduler.above_gap() == nullptr);
  low->finish(Finish::kCancelled);
  driven.sweep();
  for (int i = 0; i < 2; ++i) driven.scheduler.plan(1);
  CHECK(driven.scheduler.above_gap() == nullptr);  // a free slot below all that are in use is none
}

TEST("a sequence gets the slot that it wants, else the one that is chosen for it, else the lowest") {
  Driven driven(4, 64);
  const auto choose = [](const Sequence& sequence, const std::vector<int32_t>& free_slots) {
    CHECK(!free_slots.empty());
    return sequence.token(0) == 'c' ? 2 : -1;
  };
  std::vector<int32_t> slots;
  for (const char name : {'a', 'c', 'w', 'c'}) {
    Task task = make_task(name, 3, 10);
    if (name == 'w') task.slot = 3;
    driven.add(std::move(task));
    driven.scheduler.admit(driven.now(), choose);
    driven.scheduler.for_each_running([&](const Sequence& sequence) {
      if (sequence.state() == Sequence::State::kStarting) slots.push_back(sequence.slot());
    });
    driven.admit();
  }

  CHECK_EQ(slots, (std::vector<int32_t>{0, 2, 3, 1}));
}

TEST("when more run than a step has rows, those left out come first next time") {
  Driven driven(5, 2);
  std::vector<Sequence*> sequences;
  for (int i = 0; i < 5; ++i) sequences.push_back(driven.add_decoding());
  std::vector<int32_t> n_steps(5);
  for (int step = 0; step < 10; ++step) {
    const Plan plan = driven.scheduler.plan(0);
    CHECK_EQ(plan.n_decode, 2);
    for (size_t i = 0; i < 5; ++i) n_steps[i] += tokens_of(plan, sequences[i]);
    driven.compute(plan);
  }

  CHECK_EQ(n_steps, (std::vector<int32_t>{4, 4, 4, 4, 4}));
}

TEST("those of the last class take turns in the rows that they may have, and others lose none by that") {
  Driven driven(6, 5);
  std::set<const Sequence*> first, last;
  for (int i = 0; i < 3; ++i) {
    last.insert(driven.add_decoding(-1, Scheduler::kLastClass));
    first.insert(driven.add_decoding(-1, Scheduler::kLastClass - 1));
  }
  CHECK_EQ(driven.scheduler.n_decoding_first(), 3);

  std::vector<int> n_turns(3);
  for (int step = 0; step < 9; ++step) {
    const Plan plan = driven.scheduler.plan(0, 1);
    CHECK_EQ(plan.n_decode, 4);
    for (const Sequence* sequence : first) CHECK_EQ(tokens_of(plan, sequence), 1);
    std::transform(last.begin(), last.end(), n_turns.begin(), n_turns.begin(),
                   [&](const Sequence* sequence, int n) { return n + tokens_of(plan, sequence); });
  }
  CHECK(n_turns == std::vector<int>({3, 3, 3}));
  CHECK_EQ(driven.scheduler.plan(0).n_decode, 5);
}

TEST("what the last class reads is told apart, unless somebody before it waits for that") {
  Driven driven(4, 100);
  driven.add_decoding();
  CHECK(driven.scheduler.reads_for_last_class());
  Sequence* batch = driven.add(50, -1, 0, Scheduler::kLastClass);
  driven.admit();
  CHECK(driven.scheduler.reads_for_last_class());

  Sequence* other = driven.add(60);
  driven.scheduler.admit(driven.now());
  other->follow(batch, 40);
  CHECK(!driven.scheduler.reads_for_last_class());
}

TEST("those that wait longest get the free slots, the lowest slots first") {
  Driven driven(2, 8);
  Sequence* first = driven.add(1);
  Sequence* second = driven.add(1);
  Sequence* third = driven.add(1);

  CHECK_EQ(driven.admit(), size_t{2});
  CHECK_EQ(driven.admit(), size_t{0});

  CHECK_EQ(first->slot(), 0);
  CHECK_EQ(second->slot(), 1);
  CHECK_EQ(third->state(), State::kWaiting);
  CHECK_EQ(driven.scheduler.n_running(), size_t{2});
  CHECK_EQ(driven.scheduler.n_waiting(), size_t{1});
  first->finish(Finish::kCancelled);
  CHECK_EQ(driven.sweep(), std::vector<int32_t>{0});
  CHECK_EQ(driven.admit(), size_t{1});
  CHECK_EQ(third->slot(), 0);
}

TEST("of several owners, whoever has the fewest running is next, and each owner's are in order") {
  Driven driven(3, 8);
  std::vector<Sequence*> greedy, modest;
  for (int i = 0; i < 4; ++i) greedy.push_back(driven.add(1, -1, 7));
  for (int i = 0; i < 2; ++i) modest.push_back(driven.add(1, -1, 8));

  driven.admit();
  CHECK(greedy[0]->slot() >= 0 && modest[0]->slot() >= 0 && greedy[1]->slot() >= 0);
  CHECK_EQ(driven.scheduler.n_waiting(), size_t{3});

  modest[0]->finish(Finish::kCancelled);
  driven.sweep();
  driven.admit();
  CHECK(modest[1]->slot() >= 0);
  CHECK_EQ(greedy[2]->slot(), -1);
}

// Charges the owner of a sequence for seconds of the machine.
void charge(Driven& driven, Sequence* sequence, double seconds) {
  Plan plan;
  plan.items.push_back({sequence, 1});
  driven.scheduler.charge(plan.items, seconds, 0, 0);
}

TEST("a step is charged to its rows by what they cost, and all of it is") {
  Driven driven(4, 100);
  Sequence* const decoding = driven.add_decoding();
  Sequence* const reading = driven.add(40, -1, 7);
  driven.admit();
  const Plan plan = driven.scheduler.plan(30);
  REQUIRE(tokens_of(plan, decoding) == 1 && tokens_of(plan, reading) == 30);

  driven.scheduler.charge(plan.items, 2.0, 0.010, 0.001);
  CHECK_EQ(driven.scheduler.ledger().rank(0).virtual_s, 0.5);
  CHECK_EQ(driven.scheduler.ledger().rank(7).virtual_s, 1.5);

  driven.scheduler.charge(plan.items, 3.1, 0, 0);  // no prices yet
  CHECK_EQ(driven.scheduler.ledger().rank(0).virtual_s, 0.6);
  CHECK_EQ(driven.scheduler.ledger().rank(7).virtual_s, 4.5);
}

TEST("half of a step's prompt tokens go to the oldest prompt of whoever has had least of the machine") {
  Driven driven(4, 100);
  Sequence* const greedy = driven.add(500, -1, 7);
  driven.admit();
  Sequence* const modest = driven.add(300, -1, 8);
  driven.admit();
  Sequence* const later = driven.add(400, -1, 8);
  driven.admit();
  CHECK_EQ(tokens_of(driven.scheduler.plan(60), greedy), 30);

  charge(driven, greedy, 4);
  CHECK_EQ(tokens_of(driven.scheduler.plan(60), greedy), 0);
  CHECK_EQ(tokens_of(driven.scheduler.plan(60), modest), 30);
  CHECK_EQ(tokens_of(driven.scheduler.plan(60), later), 30);  // the shortest of the others

  charge(driven, modest, 5);
  CHECK_EQ(tokens_of(driven.scheduler.plan(60), greedy), 30);
  CHECK_EQ(tokens_of(driven.scheduler.plan(60), modest), 30);
}

Task task_of(uint64_t owner, int32_t tier = 0, int32_t priority = 5) {
  Task task = make_task('p');
  task.sharing_scope.owner = owner;
  task.tier = tier;
  task.priority = priority;
  return task;
}

// A machine with one slot, which somebody has had for long enough to lose it.
struct Displacing : Driven {
  explicit Displacing(Task task, int32_t n_computed = 100, Clock::duration passed = std::chrono::seconds(2))
      : Driven(1, 1000) {
    task.prompt.resize(200, 'p');
    running = add(std::move(task));
    admit();
    compute({running, n_computed});
    pass(passed);
  }

  bool is_displaced(Clock::duration later = {}) const {
    const Sequence* const sequence = scheduler.to_displace(now() + later);
    CHECK(sequence == nullptr || sequence == running);
    return sequence != nullptr;
  }

  Sequence* running;
};

TEST("who waits takes a slot for a better tier, for a class better by two of the same owner, and for nothing less") {
  const auto is_displaced = [](Task running, Task waiting) {
    Displacing machine(std::move(running));
    machine.add(std::move(waiting));
    return machine.is_displaced();
  };
  CHECK(is_displaced(task_of(1, 1), task_of(2, 0)));
  CHECK(is_displaced(task_of(1, 1, 1), task_of(2, 0, 9)));
  CHECK(!is_displaced(task_of(1, 0), task_of(2, 0)));
  CHECK(!is_displaced(task_of(1, 0), task_of(2, 1)));
  CHECK(!is_displaced(task_of(1, 0, 9), task_of(2, 0, 1)));
  CHECK(is_displaced(task_of(1, 0, 5), task_of(1, 0, 3)));
  CHECK(is_displaced(task_of(0, 0, 9), task_of(0, 0, 1)));
  CHECK(!is_displaced(task_of(1, 0, 5), task_of(1, 0, 4)));
}

TEST("who waits takes a slot from an owner that has had two seconds more, and runs more than its share") {
  Displacing machine(task_of(1));
  machine.add(task_of(2));
  charge(machine, machine.running, 1.9);
  CHECK(!machine.is_displaced());

  charge(machine, machine.running, 0.2);
  CHECK(machine.is_displaced());

  Driven fair(2, 1000);
  Sequence* const modest = fair.add(200, -1, 1);
  fair.add(200, -1, 2);
  fair.admit();
  fair.compute({modest, 100});
  fair.add(200, -1, 2);
  fair.pass(std::chrono::seconds(2));
  charge(fair, modest, 100);
  CHECK(fair.scheduler.to_displace(fair.now()) == nullptr);  // it has its half of the slots, and no more
}

TEST("who has computed less than 64 tokens, or had its slot for less than a second, keeps it") {
  Displacing few(task_of(1, 1), 63), hasty(task_of(1, 1), 64, std::chrono::milliseconds(900));
  few.add(task_of(2));
  hasty.add(task_of(2));

  CHECK(!few.is_displaced());
  CHECK(!hasty.is_displaced());
  CHECK(hasty.is_displaced(std::chrono::milliseconds(200)));
  few.compute({few.running, 1});
  CHECK(few.is_displaced());
}

TEST("whose work would be lost keeps its slot, and so does everybody while there is a free one") {
  Task whole = task_of(1, 1);
  whole.share_prefix = false;
  Displacing alone(std::move(whole));
  alone.add(task_of(2));
  Driven roomy(2, 1000);
  Sequence* const running = roomy.add([] {
    Task task = task_of(1, 1);
    task.prompt.resize(200, 'p');
    return task;
  }());
  roomy.admit();
  roomy.compute({running, 100});
  roomy.pass(std::chrono::seconds(2));
  roomy.add(task_of(2));

  CHECK(!alone.is_displaced());
  CHECK(roomy.scheduler.to_displace(roomy.now()) == nullptr);
}

TEST("who gives way is of the worst tier, of whoever has had most, reads its prompt, and started last") {
  Driven driven(5, 1000);
  const auto add = [&](uint64_t owner, int32_t tier, bool decodes) {
    Task task = task_of(owner, tier);
    task.prompt.resize(decodes ? 99 : 200, 'p');
    Sequence* const sequence = driven.add(std::move(task));
    driven.admit();
    driven.compute({sequence, 99});
    return sequence;
  };
  Sequence* const better = add(1, 1, false);
  Sequence* const most = add(2, 2, true);
  Sequence* const reads = add(2, 2, false);
  Sequence* const reads_last = add(2, 2, false);
  Sequence* const least = add(3, 2, false);
  charge(driven, better, 100);
  charge(driven, most, 10);
  driven.add(task_of(9));
  driven.pass(std::chrono::seconds(2));
  std::vector<Sequence*> order;
  while (order.size() < 5) {
    order.push_back(driven.scheduler.to_displace(driven.now()));
    REQUIRE(order.back() != nullptr);
    driven.scheduler.displace(*order.back(), driven.now());
    CHECK_EQ(driven.admit(), size_t{1});  // the one that it gave way to, which is new there
    driven.add(task_of(9));
  }

  CHECK(order == (std::vector<Sequence*>{reads_last, reads, most, least, better}));
}

TEST("who has lost its slot waits where it was: behind whom it was taken for, and before its own that came later") {
  Displacing machine(task_of(1, 1));
  Sequence* const later = machine.add(task_of(1, 1));
  Sequence* const urgent = machine.add(task_of(2));
  REQUIRE(machine.is_displaced());

  machine.scheduler.displace(*machine.running, machine.now());

  CHECK_EQ(machine.running->state(), State::kWaiting);
  for (Sequence* const next : {urgent, machine.running, later}) {
    CHECK_EQ(machine.admit(), size_t{1});
    CHECK_EQ(next->slot(), 0);
    next->finish(Finish::kCancelled);
    machine.sweep();
  }
}

TEST("whoever waits for long is admitted before those of its class that come later") {
  Driven driven(1, 8);
  Sequence* running = driven.add(1);
  driven.admit();
  const Sequence* earlier = driven.add(1, -1, 0, 6);
  driven.pass(std::chrono::seconds(10));
  const Sequence* later = driven.add(1, -1, 0, 5);
  running->finish(Finish::kCancelled);
  driven.sweep();

  driven.admit();

  CHECK_EQ(earlier->slot(), 0);
  CHECK_EQ(later->slot(), -1);
}

TEST("sweep lets go of what is done, waiting and running, and tells them apart") {
  Driven driven(1, 8);
  Sequence* running = driven.add(1);
  driven.admit();
  Sequence* waiting = driven.add(1);
  driven.add(1);
  driven.scheduler.for_each([&](Sequence& sequence) {
    if (&sequence == running || &sequence == waiting) sequence.finish(Finish::kCancelled);
  });

  const Scheduler::Swept swept = driven.scheduler.sweep();

  REQUIRE(swept.from_slots.size() == 1);
  CHECK_EQ(swept.from_slots[0]->slot(), 0);
  CHECK_EQ(swept.others.size(), size_t{1});
  CHECK_EQ(driven.scheduler.n_running(), size_t{0});
  CHECK_EQ(driven.scheduler.n_waiting(), size_t{1});
  CHECK(driven.sweep().empty());
}

TEST("there is work while something runs, or waits and has a slot free") {
  Driven driven(1, 8);
  CHECK(!driven.scheduler.has_work());
  Sequence* first = driven.add(1);
  CHECK(driven.scheduler.has_work());
  driven.admit();
  CHECK(driven.scheduler.has_work());
  first->set_paused(true);
  CHECK(!driven.scheduler.has_work());
  driven.add(1);
  CHECK(driven.scheduler.has_work());  // the first can lend its slot to the second

  first->finish(Finish::kCancelled);
  driven.sweep();
  CHECK(driven.scheduler.has_work());
}

TEST("a paused sequence keeps its slot and is left out of the steps (I6)") {
  Driven driven(3, 8);
  Sequence* paused = driven.add_decoding();
  Sequence* other = driven.add_decoding();
  Sequence* prompt = driven.add(5);
  driven.admit();
  paused->set_paused(true);
  prompt->set_paused(true);

  const Plan plan = driven.scheduler.plan(8);

  CHECK_EQ(plan.items.size(), size_t{1});
  CHECK_EQ(tokens_of(plan, other), 1);
  CHECK_EQ(driven.scheduler.n_decoding(), 1);
  CHECK_EQ(driven.scheduler.n_running(), size_t{3});
  paused->set_paused(false);
  CHECK_EQ(tokens_of(driven.scheduler.plan(8), paused), 1);
}

// What has to hold for every plan, whatever runs.
void check_plan(Driven& driven, const Plan& plan, int32_t rows, int32_t budget) {
  std::set<const Sequence*> planned;
  int32_t n_decode = 0;
  int32_t n_prompt = 0;
  for (const auto& [sequence, n_tokens] : plan.items) {
    CHECK(planned.insert(sequence).second);
    CHECK(n_tokens >= 1 && n_tokens <= sequence->n_pending());
    CHECK(!sequence->is_paused());
    if (sequence->state() == State::kDecoding) CHECK(n_tokens == 1 && n_prompt == 0);
    (sequence->state() == State::kDecoding ? n_decode : n_prompt) += n_tokens;
  }
  CHECK_EQ(plan.n_decode, n_decode);
  CHECK_EQ(plan.n_prompt, n_prompt);
  CHECK(n_decode + n_prompt <= rows);
  CHECK(n_prompt <= budget);

  const Sequence* oldest = nullptr;
  driven.scheduler.for_each_running([&](const Sequence& sequence) {
    if (sequence.state() != State::kPrefilling || sequence.is_paused()) return;
    if (oldest == nullptr || sequence.started() < oldest->started()) oldest = &sequence;
  });
  const int32_t kept = oldest == nullptr ? 0 : std::min(budget, rows / 4);  // for prompts
  CHECK_EQ(n_decode, std::min(rows - kept, driven.scheduler.n_decoding()));
  if (oldest == nullptr) return;
  const int32_t room = std::min(budget, rows - n_decode);
  CHECK(tokens_of(plan, oldest) >= std::min((room + 1) / 2, oldest->n_pending()));
}

void check_slots(Driven& driven, int32_t slots) {
  std::set<int32_t> taken;
  driven.scheduler.for_each_running([&](const Sequence& sequence) {
    CHECK(sequence.slot() >= 0 && sequence.slot() < slots);
    CHECK(taken.insert(sequence.slot()).second);
  });
}

void check_random_load(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&random](int32_t bound) { return static_cast<int32_t>(random() % static_cast<uint32_t>(bound)); };
  const int32_t slots = 1 + below(8);
  const int32_t rows = 1 + below(40);
  Driven driven(slots, rows);
  const int32_t n_sequences = 5 + below(25);
  int64_t n_tokens = 0;
  int32_t n_added = 0;
  int64_t n_steps = 0;
  std::vector<Sequence*> paused;
  while (n_added < n_sequences || driven.scheduler.has_work() || !paused.empty()) {
    while (n_added < n_sequences && below(3) == 0) {
      const int32_t n_prompt = 1 + below(below(4) == 0 ? 400 : 20);
      const int32_t max_tokens = below(30);
      driven.add(static_cast<size_t>(n_prompt), max_tokens);
      n_tokens += n_prompt + max_tokens;
      ++n_added;
    }
    const size_t n_free = static_cast<size_t>(slots) - driven.scheduler.n_running();
    const size_t n_waiting = driven.scheduler.n_waiting();
    CHECK_EQ(driven.admit(), std::min(n_free, n_waiting));
    check_slots(driven, slots);
    for (Sequence* sequence : std::exchange(paused, {})) sequence->set_paused(false);
    driven.scheduler.for_each_running([&](Sequence& sequence) {
      if (below(10) != 0) return;
      sequence.set_paused(true);
      paused.push_back(&sequence);
    });

    const int32_t budget = 1 + below(rows + 10);
    const Plan plan = driven.scheduler.plan(budget);
    check_plan(driven, plan, rows, budget);
    driven.compute(plan);
    paused.erase(std::remove_if(paused.begin(), paused.end(),
                                [](const Sequence* sequence) { return sequence->state() == State::kDone; }),
                 paused.end());
    driven.sweep();
    // Each step that is not paused away does at least one token of the work.
    ++n_steps;
    REQUIRE(n_steps < 20 * n_tokens + 1000);
  }
  CHECK_EQ(driven.scheduler.n_waiting(), size_t{0});
  CHECK_EQ(driven.scheduler.n_running(), size_t{0});
}

TEST("under any load plans keep to rows and budget, slots are never shared, and everyone ends") {
  for (uint32_t seed = 1; seed <= 60; ++seed) check_random_load(seed);
}

TEST("a prompt is read though more sequences decode than a step has rows") {
  Driven driven(20, 8);
  for (int i = 0; i < 19; ++i) driven.add_decoding();
  const Sequence* prompt = driven.add(100);
  driven.admit();

  const Plan plan = driven.scheduler.plan(64);

  CHECK_EQ(plan.n_decode, 6);
  CHECK_EQ(tokens_of(plan, prompt), 2);
  CHECK_EQ(driven.scheduler.plan(1).n_decode, 7);
}

TEST("a long prompt ends while short ones keep coming") {
  Driven driven(4, 32);
  Sequence* long_one = driven.add(2000, 5);
  driven.admit();
  int steps = 0;
  for (; long_one->state() == State::kPrefilling && steps < 1000; ++steps) {
    driven.add(30, 1);
    driven.admit();
    driven.compute(driven.scheduler.plan(32));
    driven.sweep();
  }

  CHECK(steps <= 2000 / 14);  // half of what decoding leaves of 32 rows
}

}  // namespace
}  // namespace corosrv
