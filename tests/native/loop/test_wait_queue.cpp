#include <optional>
#include <random>

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

  // The name of the one that is taken, or '-'.
  char take(const WaitQueue::Running& running = {}, const std::vector<int32_t>& free_slots = {0}) {
    const auto sequence = queue.take_next(free_slots, running);
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

 public:
  WaitQueue queue;
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

TEST("whoever has the fewest running is next, whatever the classes") {
  Timed timed;
  timed.add({'a', 1, 1 * kSecond, 7});
  timed.add({'b', 9, {}, 8});
  timed.add({'c', 8, {}, 9});

  CHECK_EQ(timed.take({{7, 2}, {8, 1}, {9, 1}}), 'c');
  CHECK_EQ(timed.take({{7, 1}, {8, 1}}), 'a');
  CHECK_EQ(timed.take({{7, 1}, {8, 1}}), 'b');
}

TEST("one that wants a slot gets that one, and holds up nobody who takes another") {
  Timed timed;
  timed.add({'w', 1, {}, 0, 3});
  timed.add({'a', 9});

  CHECK(timed.queue.has_next({0}));
  CHECK_EQ(timed.take({}, {0, 1}), 'a');
  CHECK(!timed.queue.has_next({0}));
  CHECK_EQ(timed.take({}, {0, 1}), '-');
  CHECK_EQ(timed.take({}, {2, 3}), 'w');
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
      const auto taken = timed.queue.take_next({0}, {});
      waiting.erase(std::find(waiting.begin(), waiting.end(), taken.get()));

      CHECK_EQ(static_cast<char>(taken->token(0)), expected);
    }
  }
}

}  // namespace
}  // namespace corosrv
