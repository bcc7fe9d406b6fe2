// What slots leave behind: copied out, put back, forgotten.
#include <memory>
#include <string>
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

}  // namespace
}  // namespace corosrv
