#include <fstream>
#include <optional>
#include <random>
#include <sstream>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "fakes/client.h"
#include "fakes/tasks.h"
#include "loop/wait_queue.h"

namespace corosrv {
namespace {

constexpr std::chrono::seconds kSecond(1);

// What a sequence is to wait with; its prompt begins with its name.
struct Waiting {
  char name;
  int32_t priority = 5;
  std::optional<std::chrono::seconds> due = {};  // from its submission on
  uint64_t owner = 0;
  int32_t slot = -1;
  int32_t tier = 0;
  double weight = 1;
};

// A queue whose time a test sets, and which names what it is asked for.
class Timed {
 public:
  std::unique_ptr<Sequence> make(const Waiting& waiting) {
    Task task = make_task(waiting.name);
    task.priority = waiting.priority;
    if (waiting.due) task.deadline = now_ + *waiting.due;
    task.sharing_scope.owner = waiting.owner;
    task.slot = waiting.slot;
    task.tier = waiting.tier;
    ledger_.join(waiting.owner, waiting.tier, waiting.weight);
    return std::make_unique<Sequence>(Submission{std::move(task), make_reader(), now_}, vocabulary_, 100, signals_,
                                      stats_);
  }

  Sequence* add(const Waiting& waiting) {
    auto sequence = make(waiting);
    Sequence* added = sequence.get();
    queue.add(std::move(sequence));
    return added;
  }

  void pass(Clock::duration duration) {
    now_ += duration;
    queue.age(now_);
  }

  void charge(uint64_t owner, double seconds) {
    ledger_.charge(owner, seconds);
    queue.reorder(owner);
  }

  // The next one has got a slot; its name.
  char start() {
    const auto sequence = queue.take_next({0});
    ledger_.start(sequence->owner());
    queue.reorder(sequence->owner());
    return static_cast<char>(sequence->token(0));
  }

  // One that had a slot has ended.
  void stop(uint64_t owner) {
    ledger_.stop(owner);
    ledger_.leave(owner);
    queue.reorder(owner);
  }

  // The name of the one that is taken, or '-'.
  char take(const std::vector<int32_t>& free_slots = {0}) {
    const auto sequence = queue.take_next(free_slots);
    return sequence ? static_cast<char>(sequence->token(0)) : '-';
  }

  std::string take_all() {
    std::string names;
    while (!queue.is_empty()) names += take();
    return names;
  }

 private:
  const ByteVocabulary vocabulary_;
  Signals signals_;
  LoopStats stats_;
  Clock::time_point now_ = Clock::now();
  OwnerLedger ledger_;

 public:
  WaitQueue queue{ledger_};
};

TEST("of those that wait the first class is next, then the earliest deadline, then the first that came") {
  Timed timed;
  timed.add({'a'});
  timed.add({'b', 9, 1 * kSecond});
  timed.add({'c', 5, 20 * kSecond});
  timed.add({'d', 1});
  timed.add({'e', 5, 10 * kSecond});
  timed.add({'f'});

  CHECK_EQ(timed.take_all(), "decafb");
  CHECK_EQ(timed.take(), '-');
}

TEST("one that waits rises by a class every ten seconds, and no further than the first") {
  Timed timed;
  timed.add({'o', 8});
  timed.pass(9 * kSecond);
  timed.add({'a', 7});
  CHECK_EQ(timed.take(), 'a');

  timed.pass(1 * kSecond);
  timed.add({'b', 7, 1 * kSecond});
  timed.add({'c', 7});
  CHECK_EQ(timed.take(), 'b');
  timed.pass(60 * kSecond);
  timed.add({'d', 1});

  CHECK_EQ(timed.take_all(), "ocd");
}

TEST("nobody starves, however urgent those are that keep coming") {
  Timed timed;
  timed.add({'o', 9});
  char taken = '-';
  int seconds = 0;
  for (; taken != 'o' && seconds < 1000; ++seconds) {
    timed.add({'u', 1, 1 * kSecond});
    timed.add({'u', 1, 1 * kSecond});
    taken = timed.take();
    timed.pass(kSecond);
  }

  CHECK(seconds <= 120);  // until those are taken that came in its first minute
}

TEST("whoever has had least of the machine is next, whatever the classes, which order one owner's alone") {
  Timed timed;
  timed.add({'a', 1, 1 * kSecond, 7});
  timed.add({'b', 9, {}, 8});
  timed.add({'c', 8, {}, 9});
  timed.add({'d', 1, {}, 8});
  timed.charge(7, 3);
  timed.charge(9, 2);

  CHECK_EQ(timed.take_all(), "dbca");
}

TEST("where an owner stands is seen anew with each charge") {
  Timed timed;
  for (const char name : {'a', 'b', 'c'}) timed.add({name, 5, {}, 1});
  for (const char name : {'x', 'y', 'z'}) timed.add({name, 5, {}, 2});
  std::string names;
  for (int taken = 0; taken < 6; ++taken) {
    names += timed.take();
    timed.charge(names.back() < 'x' ? 1 : 2, names.back() < 'x' ? 2 : 1);
  }

  CHECK_EQ(names, "axybzc");
}

TEST("a better tier is next, whatever its owner has had; every half minute of waiting is a tier's worth") {
  Timed timed;
  timed.add({'o', 5, {}, 8, -1, 2});
  timed.pass(59 * kSecond);
  timed.add({'a', 5, {}, 7});
  timed.charge(7, 100);
  CHECK_EQ(timed.take(), 'a');

  timed.add({'b', 5, {}, 7});
  timed.pass(1 * kSecond);
  timed.add({'p', 5, {}, 8, -1, 2});

  CHECK_EQ(timed.take_all(), "obp");
}

TEST("one that comes back has its class again and its place in it, and rises anew") {
  Timed timed;
  timed.add({'a', 6});
  timed.add({'b', 6});
  timed.pass(kSecond);
  auto back = timed.queue.take_next({0});
  timed.add({'c', 6});
  timed.add({'d', 5});
  back->start(0, Clock::now());
  back->displace(back->submitted() + 30 * kSecond);
  timed.queue.add(std::move(back));

  CHECK_EQ(timed.take_all(), "dabc");
}

TEST("one that wants a slot gets that one, and holds up nobody who takes another") {
  Timed timed;
  timed.add({'w', 1, {}, 0, 3});
  timed.add({'a', 9});

  CHECK(timed.queue.has_next({0}));
  CHECK_EQ(timed.take({0, 1}), 'a');
  CHECK(!timed.queue.has_next({0}));
  CHECK_EQ(timed.take({0, 1}), '-');
  CHECK_EQ(timed.take({2, 3}), 'w');
  CHECK(!timed.queue.has_next({3}));
}

TEST("those that are added first come before all others, the last of them first") {
  Timed timed;
  timed.add({'a', 1, 1 * kSecond});
  timed.queue.add_first(timed.make({'b', 9}));
  timed.queue.add_first(timed.make({'c', 9}));
  timed.pass(30 * kSecond);

  CHECK_EQ(timed.take_all(), "cba");
}

TEST("what is done is swept out of the queue, and nothing else") {
  Timed timed;
  timed.add({'a', 2});
  timed.add({'b', 1, {}, 7});
  timed.add({'c', 1});
  timed.queue.for_each([](Sequence& sequence) {
    if (sequence.priority() == 1) sequence.finish(Finish::kCancelled);
  });
  std::vector<std::unique_ptr<Sequence>> done;

  timed.queue.sweep(done);

  CHECK_EQ(done.size(), size_t{2});
  CHECK_EQ(timed.queue.size(), size_t{1});
  CHECK_EQ(timed.take_all(), "a");
}

Waiting waiting_of(const std::string& text) {
  Waiting waiting{text[0]};
  std::istringstream options(text.substr(1));
  char option;
  options >> waiting.owner;
  while (options >> option >> option) {
    if (option == 'p') options >> waiting.priority;
    if (option == 't') options >> waiting.tier;
    if (option == 'w') options >> waiting.weight;
    int seconds;
    if (option == 'd' && options >> seconds) waiting.due = kSecond * seconds;
  }
  return waiting;
}

TEST("the order is the one that the dispatcher has") {
  std::ifstream table("loop/fair_order.txt");
  int n_lines = 0;
  for (std::string line; std::getline(table, line);) {
    if (line.empty() || line[0] == '#') continue;
    ++n_lines;
    Timed timed;
    std::istringstream steps(line);
    std::string step, names, expected;
    while (steps >> step && step != "=") {
      const char kind = step[0];
      if (kind == '+') {
        timed.pass(kSecond * std::stoi(step.substr(1)));
      } else if (kind == '$') {
        timed.charge(std::stoul(step.substr(1)), std::stod(step.substr(step.find(':') + 1)));
      } else if (kind == '>') {
        names += timed.start();
      } else if (kind == '!') {
        timed.stop(std::stoul(step.substr(1)));
      } else {
        timed.add(waiting_of(step));
      }
    }
    while (steps >> step) expected += step;

    CHECK_EQ(line + ": " + names + timed.take_all(), line + ": " + expected);
  }
  CHECK(n_lines > 10);
}

// The order that the queue promises, looked up in a list of all.
char next_of(const std::vector<const Sequence*>& waiting, Clock::time_point now) {
  const auto place = [now](const Sequence* sequence) {
    const auto n_risen = (now - sequence->submitted()) / WaitQueue::kClassWait;
    const auto risen = std::max<int64_t>(sequence->priority() - n_risen, 1);
    return std::pair(risen, std::min(sequence->deadline(), sequence->submitted() + WaitQueue::kPatience));
  };
  return static_cast<char>(
      (*std::min_element(waiting.begin(), waiting.end(), [&](const Sequence* a, const Sequence* b) {
        return place(a) < place(b);
      }))->token(0));
}

TEST("in whatever order they come, the queue gives them in the order that it promises") {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Timed timed;
    Clock::time_point now;
    std::vector<const Sequence*> waiting;  // in order of arrival
    for (int step = 0; step < 200; ++step) {
      Waiting added{static_cast<char>('a' + random() % 26), static_cast<int32_t>(1 + random() % 9)};
      if (random() % 2 == 0) added.due = kSecond * static_cast<int>(random() % 90);
      waiting.push_back(timed.add(added));
      now = waiting.back()->submitted() + std::chrono::seconds(random() % 5);
      timed.pass(now - waiting.back()->submitted());
      if (random() % 2 == 0) continue;

      const char expected = next_of(waiting, now);
      const auto taken = timed.queue.take_next({0});
      waiting.erase(std::find(waiting.begin(), waiting.end(), taken.get()));

      CHECK_EQ(static_cast<char>(taken->token(0)), expected);
    }
  }
}

}  // namespace
}  // namespace corosrv
