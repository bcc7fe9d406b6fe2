// What slots leave behind: copied out, put back, forgotten.
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "handover/slot_request.h"
#include "loop/decode_loop.h"

namespace corosrv {
namespace {

using Action = SlotRequest::Action;

constexpr DecodeLoop::Limits kLimits{2, 64, 60, 1 << 20, 1};

Task task_for(const std::string& text, int32_t slot = 0, uint64_t owner = 0) {
  Task task = make_task('s', 30, 8);
  task.prompt.insert(task.prompt.end(), text.begin(), text.end());
  task.slot = slot;
  task.sharing_scope.owner = owner;
  return task;
}

// Asks and waits for the answer.
std::shared_ptr<SlotRequest> ask(RunningLoop& loop, Action action, int32_t slot, uint64_t owner = 0,
                                 SlotContent content = {}) {
  auto request = std::make_shared<SlotRequest>(action, slot, owner, std::move(content));
  REQUIRE(loop.inbox->request_slot(request).is_ok());
  REQUIRE(is_readable(request->fd(), kPatience));
  REQUIRE(request->is_answered());
  return request;
}

const Answer told(RunningLoop& loop, const Task& task) {
  const auto client = loop.submit(task);
  CHECK(client->finish());
  return client->answer();
}

SlotContent saved_by_another_loop(const Task& task) {
  RunningLoop loop(kLimits);
  loop.start();
  told(loop, task);
  return ask(loop, Action::kSave, task.slot)->content();
}

TEST("what a slot left is found again in a loop that never saw it") {
  const Task task = task_for("one");
  const SlotContent content = saved_by_another_loop(task);
  RunningLoop cold(kLimits);
  cold.start();
  const Answer expected = told(cold, task);
  RunningLoop loop(kLimits);
  loop.start();

  const auto restored = ask(loop, Action::kRestore, 1, 0, content);
  const Answer answer = told(loop, task);

  CHECK(restored->status().is_ok());
  CHECK_EQ(content.tokens.size(), size_t{40});  // the last one that was drawn is not computed
  CHECK_EQ(expected.cached_tokens, 0);
  CHECK_EQ(answer.cached_tokens, 32);
  CHECK_EQ(answer.text, expected.text);
  CHECK(loop.backend.faults().empty());
  CHECK(ask(loop, Action::kSave, 1)->content().tokens == content.tokens);
}

TEST("what is erased is computed again, and what others left is not") {
  RunningLoop loop(kLimits);
  loop.start();
  told(loop, task_for("one", 0));
  Task other = make_task('o', 30, 8);
  other.slot = 1;
  told(loop, other);

  const auto erased = ask(loop, Action::kErase, 0);
  const auto again = ask(loop, Action::kErase, 0);

  CHECK_EQ(erased->content().tokens.size(), size_t{40});
  CHECK_EQ(again->content().tokens.size(), size_t{0});
  CHECK(again->status().is_ok());
  CHECK_EQ(ask(loop, Action::kSave, 0)->status().code(), StatusCode::kInvalid);
  CHECK_EQ(told(loop, task_for("one")).cached_tokens, 0);
  CHECK_EQ(told(loop, other).cached_tokens, 29);
}

TEST("what one owner's task left is not there for another") {
  RunningLoop loop(kLimits);
  loop.start();
  told(loop, task_for("one", 0, 7));

  CHECK_EQ(ask(loop, Action::kSave, 0, 8)->status().code(), StatusCode::kInvalid);
  CHECK_EQ(ask(loop, Action::kErase, 0, 8)->content().tokens.size(), size_t{0});
  const SlotContent content = ask(loop, Action::kSave, 0, 7)->content();
  CHECK_EQ(content.tokens.size(), size_t{40});
  CHECK(ask(loop, Action::kRestore, 1, 8, content)->status().is_ok());
  CHECK_EQ(told(loop, task_for("one", 0, 9)).cached_tokens, 0);
  CHECK_EQ(told(loop, task_for("one", 0, 8)).cached_tokens, 32);
}

TEST("a slot request waits until its slot is idle, and goes before those that wait for the slot") {
  RunningLoop loop(kLimits);
  loop.backend.gate.shut();
  loop.start();
  const auto holder = loop.submit(task_for("one"));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto next = loop.submit(task_for("two"));
  const auto request = std::make_shared<SlotRequest>(Action::kSave, 0, 0);
  const auto abandoned = std::make_shared<SlotRequest>(Action::kErase, 0, 0);
  REQUIRE(loop.inbox->request_slot(abandoned).is_ok());
  REQUIRE(loop.inbox->request_slot(request).is_ok());
  abandoned->abandon();
  CHECK(!request->is_answered());
  loop.backend.gate.open();

  REQUIRE(is_readable(request->fd(), kPatience));
  CHECK(holder->finish());
  CHECK(next->finish());

  CHECK_EQ(request->content().tokens[30], Token{'o'});  // and not the 't' of the next
  CHECK(!abandoned->is_answered());
}

TEST("a task that shares nothing leaves nothing") {
  RunningLoop loop(kLimits);
  loop.start();
  Task task = task_for("one");
  told(loop, task);
  task.share_prefix = false;
  told(loop, task);

  CHECK_EQ(ask(loop, Action::kSave, 0)->status().code(), StatusCode::kInvalid);
}

TEST("a state that the model does not take is refused, and leaves the slot empty") {
  const SlotContent content = saved_by_another_loop(task_for("one"));
  RunningLoop loop(kLimits);
  loop.backend.fails_to_load = true;
  loop.start();

  CHECK_EQ(ask(loop, Action::kRestore, 0, 0, content)->status().code(), StatusCode::kInvalid);
  CHECK_EQ(ask(loop, Action::kSave, 0)->status().code(), StatusCode::kInvalid);
  CHECK_EQ(told(loop, task_for("one")).cached_tokens, 0);
  CHECK(loop.backend.faults().empty());
}

TEST("a state that the cache has no room for is refused") {
  const SlotContent content = saved_by_another_loop(task_for("one"));
  RunningLoop loop({2, 64, 60, 100, 1});
  loop.start();

  CHECK_EQ(ask(loop, Action::kRestore, 0, 0, content)->status().code(), StatusCode::kInvalid);
}

TEST("a loop that keeps no prefixes says so") {
  RunningLoop loop({2, 64, 60});
  loop.start();

  CHECK_EQ(ask(loop, Action::kSave, 0)->status().code(), StatusCode::kUnsupported);
}

TEST("a slot request is answered when the loop ends first, and refused afterwards") {
  RunningLoop loop(kLimits);
  loop.backend.gate.shut();
  loop.start();
  const auto holder = loop.submit(task_for("one"));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto request = std::make_shared<SlotRequest>(Action::kSave, 0, 0);
  REQUIRE(loop.inbox->request_slot(request).is_ok());

  loop.close("good night");

  REQUIRE(request->is_answered());
  CHECK_EQ(request->status().code(), StatusCode::kClosed);
  CHECK_EQ(loop.inbox->request_slot(request).code(), StatusCode::kClosed);
  CHECK(holder->finish());
}

// The next turn of a chat: what was said, and something new.
Task next_turn(Task task, const std::string& said, const std::string& text) {
  task.prompt.insert(task.prompt.end(), said.begin(), said.end());
  task.prompt.insert(task.prompt.end(), text.begin(), text.end());
  return task;
}

// Both, for a processor and for a device.
constexpr bool kBoth[] = {false, true};

TEST("a chat goes on in the slot that still holds it, and nothing is copied for it") {
  for (const bool is_device : kBoth) {
    RunningLoop loop(kLimits);
    loop.backend.changeable_info().computes_aside = is_device;
    loop.start();
    const Task first = task_for("one", -1);
    const Task other = make_task('o', 33, 8);
    loop.backend.gate.shut();
    const auto one = loop.submit(first), two = loop.submit(other);
    loop.backend.gate.open();
    REQUIRE(one->finish() && two->finish());
    const Task turn = next_turn(other, two->text(), "and");  // of the higher slot

    const Answer answer = told(loop, turn);

    CHECK_EQ(answer.text, said_alone(turn));
    CHECK_EQ(answer.cached_tokens, 40);
    CHECK_EQ(loop.backend.loads().size(), size_t{0});
    loop.close("the test is over");
    CHECK_EQ(loop.backend.n_saves, is_device ? 0 : 3);
    CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  }
}

TEST("what a device's slot holds is copied when another task takes the slot, and found again") {
  RunningLoop loop({1, 64, 60, 1 << 20, 1});
  loop.backend.changeable_info().computes_aside = true;
  loop.start();
  const Task first = task_for("one"), other = make_task('o', 30, 8);
  const Answer said = told(loop, first);
  CHECK_EQ(loop.backend.n_saves, 0);

  told(loop, other);
  CHECK_EQ(loop.backend.n_saves, 1);
  const Answer again = told(loop, next_turn(first, said.text, "and"));

  CHECK_EQ(again.cached_tokens, 40);
  CHECK_EQ(again.text, said_alone(next_turn(first, said.text, "and")));
  CHECK_EQ(loop.backend.n_saves, 2);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("what goes on from the middle of a slot's content leaves all of it to be found") {
  for (const bool is_device : kBoth) {
    RunningLoop loop({1, 64, 60, 1 << 20, 1});
    loop.backend.changeable_info().computes_aside = is_device;
    loop.start();
    const Task first = task_for("one");
    const Answer said = told(loop, first);

    CHECK_EQ(told(loop, task_for("two")).cached_tokens, 30);
    CHECK_EQ(told(loop, task_for("two")).cached_tokens, 32);  // all but the last, whose logits it needs
    CHECK_EQ(told(loop, next_turn(first, said.text, "and")).cached_tokens, 40);
    CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  }
}

TEST("a task of another slot begins like what a device's slot holds") {
  RunningLoop loop(kLimits);
  loop.backend.changeable_info().computes_aside = true;
  loop.start();
  told(loop, task_for("one", 0));
  Task other = task_for("two", 1);

  CHECK_EQ(told(loop, other).cached_tokens, 30);
  CHECK_EQ(loop.backend.n_saves, 1);
  other.sharing_scope.owner = 3;
  other.slot = 0;
  CHECK_EQ(told(loop, other).cached_tokens, 0);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("a slot that rests gives its memory back, and what it held is found again") {
  for (const bool is_device : kBoth) {
    DecodeLoop::Limits limits = kLimits;
    limits.idle_s = 0.01;
    RunningLoop loop(limits);
    loop.backend.changeable_info().computes_aside = is_device;
    loop.start();
    told(loop, task_for("one"));
    CHECK(eventually([&] { return loop.backend.given_back().size() == 1; }));

    CHECK_EQ(told(loop, task_for("one")).cached_tokens, 32);
    CHECK_EQ(loop.backend.loads().size(), size_t{1});
    CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  }
}

TEST("a task that is cancelled before it begins leaves its slot as it was") {
  RunningLoop loop({2, 16, 60, 1 << 20, 1});
  loop.backend.changeable_info().computes_aside = true;
  loop.start();
  const Task first = task_for("one", 1);
  const Answer said = told(loop, first);
  loop.backend.gate.shut();
  Task leader = make_task('l', 300, 8), follower = leader;
  leader.slot = 0;
  follower.slot = 1;
  const auto both = loop.submit({leader, follower});
  REQUIRE(loop.backend.gate.wait_until_held());
  both->reader().cancel();
  loop.backend.gate.open();
  CHECK(both->finish());

  CHECK_EQ(told(loop, next_turn(first, said.text, "and")).cached_tokens, 40);
  CHECK_EQ(loop.backend.n_saves, 0);
}

// Chats of several turns, in any order, with slots that are asked for, saved, erased and given back meanwhile.
void check_random_chats(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&random](size_t bound) { return static_cast<size_t>(random()) % bound; };
  DecodeLoop::Limits limits{static_cast<int32_t>(1 + below(4)), 64, 60, (1 + below(3)) * 1000, 1};
  limits.idle_s = below(2) == 0 ? 0.0005 : 60;
  RunningLoop loop(limits);
  loop.backend.changeable_info().computes_aside = below(3) > 0;
  if (below(2) == 0) loop.backend.changeable_info().window = static_cast<int32_t>(1 + below(30));
  loop.backend.changeable_info().resumes_in_window = below(3) > 0;
  loop.start();
  std::vector<Task> chats;
  for (int i = 0; i < 4; ++i) {
    Task task = make_task('s', 10 + below(2) * 20, 1 + static_cast<int32_t>(below(8)));
    task.prompt.push_back(static_cast<Token>('a' + i / 2));
    task.sharing_scope.owner = below(2);
    chats.push_back(task);
  }
  for (int turn = 0; turn < 12; ++turn) {
    std::vector<std::pair<Task*, std::unique_ptr<Client>>> running;
    for (Task& chat : chats) {
      if (below(2) == 0) continue;
      chat.slot = below(3) == 0 ? static_cast<int32_t>(below(static_cast<size_t>(limits.slots))) : -1;
      running.emplace_back(&chat, loop.submit(chat));
      if (below(8) == 0) running.back().second->reader().cancel();
    }
    if (below(3) == 0) {
      const auto slot = static_cast<int32_t>(below(static_cast<size_t>(limits.slots)));
      ask(loop, below(2) == 0 ? Action::kSave : Action::kErase, slot, below(2));
    }
    for (auto& [chat, client] : running) {
      REQUIRE(client->finish());
      Task alone = *chat;
      alone.slot = -1;
      const std::string text = client->text();
      CHECK_EQ(said_alone(alone).compare(0, text.size(), text), 0);
      if (below(4) > 0) *chat = next_turn(*chat, text, std::string(1 + below(5), 'n'));
    }
  }
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("chats say what they say alone, whatever becomes of the slots between their turns") {
  for (uint32_t seed = 1; seed <= 60; ++seed) check_random_chats(seed);
}

TEST("readers hear of a step when a device has the next one to do, and of the last one without it") {
  RunningLoop loop({1, 64, 60});
  loop.backend.changeable_info().computes_aside = true;
  loop.backend.gate.shut();
  loop.start();
  const auto client = loop.submit(make_task('a', 3, 3));
  REQUIRE(loop.backend.gate.wait_until_held());
  const int fd = client->reader().fd();
  std::vector<bool> before, during;
  loop.backend.before_decode = [&](const ScriptedBackend&, const ScriptedBackend::Rows&) {
    before.push_back(is_readable(fd, 0));
    return Status::ok();
  };
  loop.backend.on_wait = [&] { during.push_back(is_readable(fd, 0)); };
  loop.backend.gate.open();
  CHECK(eventually([&] { return loop.stats().tasks_length == 1; }));
  loop.close("the test is over");

  CHECK_EQ(before, (std::vector<bool>{false, false, true}));  // nobody has read what the first token left
  CHECK_EQ(during, (std::vector<bool>{false, true, true}));
  CHECK(client->finish());
  CHECK_EQ(client->answer().n_tokens, 3);
}

}  // namespace
}  // namespace corosrv
