// Embedding rows in prompts: where they stand, how they are batched, shared and contained.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "handover/row_bytes.h"
#include "handover/slot_request.h"
#include "loop/decode_loop.h"
#include "model/embedded_rows.h"

namespace corosrv {
namespace {

constexpr size_t kWidth = 2;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr DecodeLoop::Limits kSharing{4, 64, 60, 1 << 20};

// Gives the prompt rows whose first number is 100, 101 and so on.
Task with_rows(std::vector<Token> prompt, int32_t max_tokens = 6) {
  Task task = make_task(0, 1, max_tokens);
  task.prompt = std::move(prompt);
  std::vector<float> numbers;
  const auto n_rows = std::count_if(task.prompt.begin(), task.prompt.end(), is_row);
  for (int i = 0; i < n_rows; ++i) numbers.insert(numbers.end(), {100.0f + static_cast<float>(i), 0.5f});
  task.rows = std::make_shared<EmbeddedRows>(task.prompt, kWidth, std::move(numbers));
  return task;
}

std::vector<Token> joined(std::vector<std::vector<Token>> parts) {
  std::vector<Token> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<Token> repeated(size_t count, Token id) { return std::vector<Token>(count, id); }

TEST("rows are found at the places of the negative ids, tokens are not rows") {
  const std::vector<Token> prompt{'a', -2, -2, 'b', -3};
  const EmbeddedRows rows(prompt, 1, {1, 2, 3});

  CHECK(rows.at(0) == nullptr);
  CHECK_EQ(*rows.at(1), 1.0f);
  CHECK_EQ(*rows.at(2), 2.0f);
  CHECK(rows.at(3) == nullptr);
  CHECK_EQ(*rows.at(4), 3.0f);
  CHECK(rows.at(5) == nullptr);  // what is generated
}

TEST("a run ends where tokens follow rows or rows tokens, and what is generated has no end") {
  const EmbeddedRows rows({'a', -2, -3, 'b', -4}, 1, {1, 2, 3});

  CHECK_EQ(rows.end_of_run(0), 1);
  CHECK_EQ(rows.end_of_run(1), 3);
  CHECK_EQ(rows.end_of_run(2), 3);
  CHECK_EQ(rows.end_of_run(4), 5);
  CHECK(rows.end_of_run(5) > 1000);
}

TEST("a prompt that begins with rows, or ends with them, is computed in order and answered") {
  for (const std::vector<Token>& prompt :
       {std::vector<Token>{-2, -2, 'x'}, {'x', -2, -2}, {-2}, {'x', -2, 'y', -3, -3, 'z'}}) {
    RunningLoop loop;
    loop.start();
    const auto client = loop.submit(with_rows(prompt));

    CHECK(client->finish());

    CHECK_EQ(client->answer().n_tokens, 6);
    CHECK_EQ(client->answer().prompt_tokens, static_cast<int32_t>(prompt.size()));
    CHECK_EQ(loop.backend.faults(), std::vector<std::string>());
  }
}

TEST("each row reaches the model with its own numbers") {
  RunningLoop loop({4, 8, 60});  // several batches for the rows
  std::vector<float> seen;
  loop.backend.before_decode = [&](const ScriptedBackend&, const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      if (row.embedding != nullptr) seen.push_back(row.embedding[0]);
    }
    return Status::ok();
  };
  loop.start();
  const auto client = loop.submit(with_rows(joined({{'a'}, repeated(12, -2), {'b', 'c'}, repeated(3, -3)})));

  CHECK(client->finish());

  std::vector<float> expected;
  for (int i = 0; i < 15; ++i) expected.push_back(100.0f + static_cast<float>(i));
  CHECK_EQ(seen, expected);
}

TEST("a stream goes on in every step while another prompt's rows are read, in batches of their own") {
  RunningLoop loop({4, 16, 60});
  loop.backend.gate.shut_after(2);
  loop.start();
  const auto stream = loop.submit(make_task('s', 1, 60));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto client = loop.submit(with_rows(joined({{'r'}, repeated(64, -2)})));
  loop.backend.gate.open();

  CHECK(client->finish());
  CHECK(stream->finish());

  CHECK_EQ(loop.backend.faults(), std::vector<std::string>());
  const auto batches = loop.backend.batches();
  int n_row_batches = 0;
  for (size_t i = 0; i + 1 < batches.size(); ++i) {
    if (batches[i].front().embedding == nullptr) continue;
    ++n_row_batches;
    CHECK(batches[i + 1].front().embedding == nullptr);  // the stream's token
  }
  CHECK(n_row_batches >= 4);
}

TEST("several sequences share a batch of rows") {
  RunningLoop loop;
  loop.backend.gate.shut();
  loop.start();
  const auto first = loop.submit(make_task('s', 1, 2));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto client = loop.submit({with_rows(repeated(5, -2)), with_rows(repeated(7, -3))});
  loop.backend.gate.open();

  CHECK(first->finish());
  CHECK(client->finish());

  bool has_shared = false;
  for (const auto& batch : loop.backend.batches()) {
    has_shared = has_shared || (batch.front().embedding != nullptr && batch.front().slot != batch.back().slot);
  }
  CHECK(has_shared);
}

TEST("equal rows are computed once, other rows share the text before them and no more") {
  RunningLoop loop(kSharing);
  loop.start();
  const auto cached = [&](Token id, Token last) {
    const auto client = loop.submit(with_rows(joined({repeated(10, 'p'), repeated(20, id), {last}})));
    CHECK(client->finish());
    return client->answer().cached_tokens;
  };

  CHECK_EQ(cached(-2, 'x'), 0);
  CHECK(eventually([&] { return loop.stats().cache_entries == 1; }));
  CHECK_EQ(cached(-2, 'y'), 30);
  CHECK_EQ(cached(-3, 'x'), 10);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>());
}

TEST("a sequence that begins in the middle of known rows reads the rest of them") {
  RunningLoop loop(kSharing);
  std::vector<float> seen;
  loop.backend.before_decode = [&](const ScriptedBackend&, const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      if (row.embedding != nullptr) seen.push_back(row.embedding[0]);
    }
    return Status::ok();
  };
  loop.start();
  CHECK(loop.submit(with_rows(repeated(20, -2), 1))->finish());
  CHECK(eventually([&] { return loop.stats().cache_entries == 1; }));
  seen.clear();

  // All but the last row are known: whose logits are needed is computed again.
  CHECK(loop.submit(with_rows(repeated(20, -2), 1))->finish());

  CHECK_EQ(seen, std::vector<float>{119.0f});
}

TEST("rows whose logits are no numbers end their own sequence, and its slot is wiped") {
  RunningLoop loop(kSharing);
  loop.backend.spoil = [](Token name, int32_t position, float* logits, size_t) {
    if (name == 'n' && position == 4) logits[7] = kNan;
  };
  loop.start();
  const auto client = loop.submit({with_rows({'n', -2, -2, -2, -2, 'x'}), with_rows({'o', -3, -3, -3, -3, 'x'})});

  CHECK(client->finish());

  CHECK(client->answer(0).finish == Finish::kError);
  CHECK_EQ(client->answer(0).code, std::string("embeds_not_finite"));
  CHECK_EQ(client->answer(1).n_tokens, 6);
  CHECK(eventually([&] { return loop.backend.n_wiped == 1; }));
  CHECK(eventually([&] { return loop.stats().cache_entries == 1; }));  // the other's
}

TEST("every batch of rows is looked at, also where the prompt goes on behind it") {
  RunningLoop loop({4, 8, 60});
  loop.backend.spoil = [](Token, int32_t position, float* logits, size_t) {
    if (position < 10) logits[0] = std::numeric_limits<float>::infinity();
  };
  loop.start();
  const auto client = loop.submit(with_rows(joined({repeated(30, -2), repeated(5, 'x')})));

  CHECK(client->finish());

  CHECK(client->answer().finish == Finish::kError);
  for (const auto& batch : loop.backend.batches()) CHECK(batch.back().position < 10);
}

TEST("logits of minus infinity are no reason to end") {
  RunningLoop loop;
  loop.backend.spoil = [](Token, int32_t, float* logits, size_t) {
    logits[0] = -std::numeric_limits<float>::infinity();
  };
  loop.start();
  const auto client = loop.submit(with_rows({'n', -2, -2, 'x'}));

  CHECK(client->finish());
  CHECK_EQ(client->answer().n_tokens, 6);
}

TEST("a token whose logits are no numbers has its slot wiped too") {
  RunningLoop loop;
  loop.backend.spoil = [](Token, int32_t, float* logits, size_t size) { std::fill_n(logits, size, kNan); };
  loop.start();
  const auto client = loop.submit(make_task('n', 3, 5));

  CHECK(client->finish());

  CHECK(client->answer().finish == Finish::kError);
  CHECK(eventually([&] { return loop.backend.n_wiped == 1; }));
}

TEST("a preempted sequence reads its rows again and says the same") {
  const std::vector<Token> prompt = joined({{'q'}, repeated(6, -2), {'x'}});
  RunningLoop calm;
  calm.start();
  const auto expected = calm.submit(with_rows(prompt, 8));
  REQUIRE(expected->finish());
  RunningLoop loop({2, 64, 60});
  int n_refusals = 1;
  loop.backend.before_decode = [&](const ScriptedBackend& backend, const std::vector<Row>& rows) {
    const bool is_full = n_refusals > 0 && rows.size() > 1 && backend.has(rows, 'q') && backend.has(rows, 'o');
    if (!is_full) return Status::ok();
    --n_refusals;
    return Status(StatusCode::kNoRoom, "full");
  };
  loop.start();
  const auto client = loop.submit({make_task('o', 1, 20), with_rows(prompt, 8)});

  CHECK(client->finish());

  CHECK_EQ(client->text(1), expected->text());
  CHECK_EQ(n_refusals, 0);
}

TEST("the bytes of rows are counted until the last task lets go of them, and too many are refused") {
  const auto row_bytes = std::make_shared<RowBytes>(3 * kWidth * sizeof(float));
  const std::vector<float> numbers(4 * kWidth, 0.5f);
  const auto rows_of = [&](size_t n_rows) {
    return make_counted_rows(row_bytes, repeated(n_rows, -2), kWidth, numbers.data(), n_rows * kWidth);
  };
  auto two = rows_of(2);
  auto shared = two;

  CHECK(rows_of(2) == nullptr);
  two.reset();
  CHECK(rows_of(2) == nullptr);
  CHECK(rows_of(1) != nullptr);
  shared.reset();
  CHECK_EQ(row_bytes->held(), size_t{0});
  const auto four = rows_of(4);  // alone
  CHECK(four != nullptr);
  CHECK(rows_of(1) == nullptr);
}

TEST("a slot that holds rows is not saved, and says why") {
  RunningLoop loop(kSharing);
  loop.start();
  Task task = with_rows(joined({repeated(8, 'p'), repeated(8, -2)}));
  task.slot = 1;
  CHECK(loop.submit(task)->finish());
  const auto ask = [&](SlotRequest::Action action) {
    auto request = std::make_shared<SlotRequest>(action, 1, 0);
    REQUIRE(loop.inbox->request_slot(request).is_ok());
    REQUIRE(is_readable(request->fd(), kPatience));
    REQUIRE(request->is_answered());
    return request;
  };

  const auto saved = ask(SlotRequest::Action::kSave);
  CHECK(saved->status().code() == StatusCode::kUnsupported);
  CHECK(saved->status().message().find("embedding rows") != std::string::npos);
  CHECK(ask(SlotRequest::Action::kErase)->content().tokens.size() > 16);
}

}  // namespace
}  // namespace corosrv
