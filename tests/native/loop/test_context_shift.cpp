// Contexts that are full, and go on without their oldest tokens.
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/scripted_backend.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "loop/decode_loop.h"

namespace corosrv {
namespace {

constexpr int32_t kContext = 16;

// Its prompt is its name and `n_prompt` - 1 letters.
Task make_shifting(Token name, size_t n_prompt, int32_t max_tokens, ContextShift shift = {}) {
  Task task = make_task(name, n_prompt, max_tokens);
  task.shift = shift;
  return task;
}

DecodeLoop::Limits limits_with(size_t cache_bytes, int32_t slots = 4) {
  DecodeLoop::Limits limits{slots, 64, 60};
  limits.cache_bytes = cache_bytes;
  return limits;
}

class ShortLoop : public RunningLoop {
 public:
  explicit ShortLoop(const DecodeLoop::Limits& limits = {4, 64, 60}) : RunningLoop(limits, 1000, kContext) {}
};

// What the model says after `prompt`, as it sees it at last.
std::string said_after(const std::string& prompt, int32_t max_tokens) {
  ShortLoop loop;
  loop.start();
  Task task = make_task(prompt[0], prompt.size(), max_tokens);
  task.prompt.assign(prompt.begin(), prompt.end());
  const auto client = loop.submit(task);
  CHECK(client->finish());
  return client->text();
}

TEST("a full context ends the answer where nothing may be dropped") {
  ShortLoop loop;
  loop.start();

  const auto client = loop.submit(make_task('a', 4));

  CHECK(client->finish());
  CHECK_EQ(client->answer().finish, Finish::kLength);
  CHECK_EQ(client->answer().n_tokens, 12);
  CHECK_EQ(client->answer().n_dropped, 0);
}

TEST("an answer goes on for three times its context, and begins like one that is not shifted") {
  ShortLoop loop;
  loop.start();

  const auto shifted = loop.submit(make_shifting('a', 4, 3 * kContext));
  const auto whole = loop.submit(make_task('a', 4));

  CHECK(shifted->finish());
  CHECK(whole->finish());
  CHECK_EQ(shifted->answer().finish, Finish::kLength);
  CHECK_EQ(shifted->answer().n_tokens, 3 * kContext);
  CHECK_EQ(shifted->answer().n_dropped, 6 * 7);
  CHECK_EQ(shifted->text().substr(0, 12), whole->text());
  // 12 tokens fill the context, and each shift makes room for 7.
  CHECK_EQ(loop.backend.n_shifts.load(), 6);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("behind n_keep tokens n_discard go, and the model goes on with what is left") {
  ShortLoop loop;
  loop.start();

  const auto client = loop.submit(make_shifting('a', 4, 14, {2, 5}));

  CHECK(client->finish());
  const std::string text = client->text();
  // At the first shift the slot holds "appp" and 11 letters, and the 12th is to be computed.
  const std::string seen = "ap" + ("appp" + text.substr(0, 12)).substr(7);
  CHECK_EQ(text.substr(12), said_after(seen, 2));
  CHECK_EQ(loop.backend.n_shifts.load(), 1);
}

TEST("half of what is behind n_keep goes where n_discard is 0") {
  ShortLoop loop;
  loop.start();

  const auto client = loop.submit(make_shifting('a', 4, 14, {4, 0}));

  CHECK(client->finish());
  const std::string text = client->text();
  CHECK_EQ(text.substr(12), said_after("appp" + text.substr(5, 7), 2));
}

TEST("more is wanted than there is: the last tokens stay, and room for some") {
  ShortLoop loop;
  loop.start();

  const auto all_kept = loop.submit(make_shifting('a', 4, 40, {1 << 30, 0}));
  const auto all_gone = loop.submit(make_shifting('b', 4, 40, {0, 1 << 30}));

  CHECK(all_kept->finish());
  CHECK(all_gone->finish());
  CHECK_EQ(all_kept->answer().n_tokens, 40);
  CHECK_EQ(all_gone->answer().n_tokens, 40);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("a context too small to be shifted ends the answer") {
  RunningLoop loop({1, 8, 60}, 10, 4);
  loop.start();

  const auto client = loop.submit(make_shifting('a', 1, 40));

  CHECK(client->finish());
  CHECK_EQ(client->answer().n_tokens, 3);
  CHECK_EQ(client->answer().finish, Finish::kLength);
}

TEST("a shift changes nothing of what others say beside it") {
  ShortLoop alone;
  alone.start();
  const auto wanted = alone.submit(make_task('b', 3, 12));
  REQUIRE(wanted->finish());
  ShortLoop loop;
  loop.start();

  const auto shifting = loop.submit(make_shifting('a', 12, 40));
  const auto beside = loop.submit(make_task('b', 3, 12));

  CHECK(shifting->finish());
  CHECK(beside->finish());
  CHECK_EQ(beside->text(), wanted->text());
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("the prompt of a shifted answer is shared as it was computed, and nothing that was shifted") {
  ShortLoop loop(limits_with(1 << 20));
  loop.start();
  const auto shifted = loop.submit(make_shifting('a', 6, 40, {6, 0}));
  REQUIRE(shifted->finish());
  const std::string after = "appppp" + shifted->text().substr(40 - 4);

  const auto same = loop.submit(make_task('a', 6, 2));
  CHECK(same->finish());
  Task like_shifted = make_task('a', 10, 2);
  like_shifted.prompt.assign(after.begin(), after.end());
  const auto other = loop.submit(like_shifted);
  CHECK(other->finish());

  CHECK_EQ(same->answer().cached_tokens, 5);
  CHECK_EQ(same->text(), shifted->text().substr(0, 2));
  CHECK(other->answer().cached_tokens <= 6);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("what waits for a prompt that is about to be shifted begins from it") {
  ShortLoop loop(limits_with(1 << 20));
  loop.backend.gate.shut();
  loop.start();
  const auto leader = loop.submit(make_shifting('a', kContext - 1, 20));
  const auto follower = loop.submit(make_shifting('a', kContext - 1, 20));
  loop.backend.gate.open();

  CHECK(leader->finish());
  CHECK(follower->finish());
  CHECK_EQ(follower->text(), leader->text());
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("a sequence that loses its slot when it is full is read again without what goes") {
  ShortLoop loop(limits_with(0, 1));
  loop.start();
  // The 12th letter fills the context, and the reader.
  const auto client = loop.submit(make_shifting('a', 4, 14, {2, 5}), 12);
  REQUIRE(eventually([&] { return loop.stats().paused == 1; }));
  const auto other = loop.submit(make_task('b', 2, 3));

  CHECK(other->finish());  // in the only slot
  CHECK(client->finish());

  CHECK_EQ(loop.stats().preempted, uint64_t{1});
  const std::string text = client->text();
  CHECK_EQ(client->answer().n_tokens, 14);
  CHECK_EQ(text.substr(12), said_after("ap" + ("appp" + text.substr(0, 12)).substr(7), 2));
  CHECK_EQ(loop.backend.n_shifts.load(), 0);  // nothing was in the slot
  CHECK(client->answer().n_dropped > 0);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("a slot is closed up with what was shifted in it") {
  ShortLoop loop(limits_with(1 << 20, 3));
  loop.start();
  std::vector<std::unique_ptr<Client>> clients;
  for (Token name = 'a'; name < 'a' + 12; ++name) {
    const bool is_short = name % 3 == 0;
    clients.push_back(loop.submit(make_shifting(name, 5, is_short ? 3 : 60)));
  }

  for (const auto& client : clients) CHECK(client->finish());

  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("a slot that was shifted holds nothing that could be saved") {
  ShortLoop loop(limits_with(1 << 20, 1));
  loop.start();
  const auto client = loop.submit(make_shifting('a', 6, 40));
  REQUIRE(client->finish());

  const auto request = std::make_shared<SlotRequest>(SlotRequest::Action::kSave, 0, 0);
  REQUIRE(loop.inbox->request_slot(request).is_ok());
  REQUIRE(is_readable(request->fd(), kPatience));

  REQUIRE(request->is_answered());
  CHECK_EQ(request->status().code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace corosrv
