// Embedding rows that the model reads in a way of their own: at positions of their own, and without causality.
#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "check.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "loop/decode_loop.h"
#include "model/embedded_rows.h"

namespace corosrv {
namespace {

constexpr DecodeLoop::Limits kSharing{4, 64, 60, 1 << 20};

using Position = std::array<int32_t, 4>;

Position values(const RopePosition& position) { return {position.t, position.y, position.x, position.z}; }

std::vector<Token> joined(std::vector<std::vector<Token>> parts) {
  std::vector<Token> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<Token> repeated(size_t count, Token id) { return std::vector<Token>(count, id); }

// Rows of an image, `n_columns` in each line, that move their sequence by `n_positions`.
RowSegment image(int32_t n_rows, int32_t n_columns, int32_t n_positions) {
  RowSegment segment{n_rows, false, n_positions, {}};
  for (int32_t row = 0; row < n_rows; ++row) segment.positions.push_back({0, row / n_columns, row % n_columns, 0});
  return segment;
}

RowSegment non_causal(int32_t n_rows) { return {n_rows, true, n_rows, {}}; }

EmbeddedRows rows_of(const std::vector<Token>& prompt, std::vector<RowSegment> segments) {
  const auto n_rows = static_cast<size_t>(std::count_if(prompt.begin(), prompt.end(), is_row));
  return EmbeddedRows(prompt, 1, std::vector<float>(n_rows, 0.5f), std::move(segments));
}

Task with_segments(std::vector<Token> prompt, std::vector<RowSegment> segments, int32_t max_tokens = 6) {
  Task task = make_task(0, 1, max_tokens);
  task.prompt = std::move(prompt);
  const auto n_rows = static_cast<size_t>(std::count_if(task.prompt.begin(), task.prompt.end(), is_row));
  task.rows = std::make_shared<EmbeddedRows>(task.prompt, 1, std::vector<float>(n_rows, 0.5f), std::move(segments));
  return task;
}

// A prompt of text, an image of 2 lines and 3 columns, and text.
const std::vector<Token> kPrompt = joined({repeated(5, 'p'), repeated(6, -2), repeated(4, 'q')});

TEST("the text behind an image goes on where the image's positions end") {
  const EmbeddedRows rows = rows_of(kPrompt, {image(6, 3, 3)});

  CHECK_EQ(values(rows.position(4)), Position({4, 4, 4, 0}));
  CHECK_EQ(values(rows.position(5)), Position({5, 5, 5, 0}));
  CHECK_EQ(values(rows.position(7)), Position({5, 5, 7, 0}));
  CHECK_EQ(values(rows.position(10)), Position({5, 6, 7, 0}));
  CHECK_EQ(values(rows.position(11)), Position({8, 8, 8, 0}));
  CHECK_EQ(values(rows.position(14)), Position({11, 11, 11, 0}));
  CHECK_EQ(values(rows.position(20)), Position({17, 17, 17, 0}));  // what is generated
}

TEST("images that stand side by side are segments of their own, and are not cut") {
  const EmbeddedRows rows = rows_of(repeated(10, -2), {image(6, 3, 3), non_causal(4)});

  CHECK_EQ(rows.end_of_run(0), 6);
  CHECK_EQ(rows.end_of_run(6), 10);
  CHECK_EQ(values(rows.position(6)), Position({3, 3, 3, 0}));
  CHECK(!rows.is_non_causal(5));
  CHECK(rows.is_non_causal(6));
  CHECK(!rows.is_non_causal(10));
  CHECK_EQ(rows.cut(5), 0);
  CHECK_EQ(rows.cut(6), 6);
  CHECK_EQ(rows.cut(9), 6);
  CHECK_EQ(rows.cut(10), 10);
  CHECK_EQ(rows.cut(12), 12);
  CHECK_EQ(rows.most_non_causal(), 4);
}

TEST("each position of a row counts from its segment's first, but for the last, which is the row's own") {
  RowSegment segment{2, false, 4, {{1, 2, 3, 7}, {4, 5, 6, 8}}};

  const EmbeddedRows rows = rows_of({'p', 'p', -2, -2, 'q'}, {segment});

  CHECK_EQ(values(rows.position(2)), Position({3, 4, 5, 7}));
  CHECK_EQ(values(rows.position(3)), Position({6, 7, 8, 8}));
  CHECK_EQ(values(rows.position(4)), Position({6, 6, 6, 0}));
}

TEST("the longest segment that is not causal counts, whichever stands last") {
  CHECK_EQ(rows_of(repeated(15, -2), {non_causal(5), non_causal(4), image(6, 3, 3)}).most_non_causal(), 5);
}

TEST("segments side by side have their own rows, and so have those between tokens") {
  std::vector<float> numbers(7);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);

  const EmbeddedRows rows({-2, -2, -2, 'x', -3, -3, -3, -3}, 1, numbers,
                          {non_causal(2), image(1, 1, 1), non_causal(4)});

  const std::vector<int32_t> places{0, 1, 2, 4, 5, 6, 7};
  for (size_t i = 0; i < places.size(); ++i) CHECK_EQ(*rows.at(places[i]), numbers[i]);
  CHECK_EQ(rows.end_of_run(0), 2);
  CHECK_EQ(rows.end_of_run(2), 3);
  CHECK_EQ(rows.end_of_run(3), 4);
  CHECK_EQ(rows.end_of_run(4), 8);
}

TEST("a prompt of nothing is where what is generated stands") {
  const EmbeddedRows rows = rows_of({}, {});

  CHECK(rows.at(0) == nullptr);
  CHECK_EQ(values(rows.position(3)), Position({3, 3, 3, 0}));
  CHECK_EQ(rows.cut(3), 3);
}

TEST("rows that are read as tokens can be cut anywhere, and have their positions") {
  const EmbeddedRows rows = rows_of(kPrompt, {});

  CHECK_EQ(rows.cut(8), 8);
  CHECK_EQ(values(rows.position(8)), Position({8, 8, 8, 0}));
  CHECK_EQ(rows.most_non_causal(), 0);
}

TEST("each row and token reaches the model at its own position") {
  RunningLoop loop({4, 8, 60});
  loop.start();
  const auto client = loop.submit(with_segments(kPrompt, {image(6, 3, 3)}, 3));

  CHECK(client->finish());

  std::vector<int32_t> t;
  for (const auto& batch : loop.backend.batches()) {
    for (const Row& row : batch) t.push_back(row.rope.t);
  }
  CHECK_EQ(t, std::vector<int32_t>({0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 8, 9, 10, 11, 12, 13}));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>());
}

TEST("rows that are not causal are computed whole, each image alone, whatever the step's budget") {
  RunningLoop loop({4, 64, 60});
  loop.backend.gate.shut_after(2);
  loop.start();
  const auto stream = loop.submit(make_task('s', 1, 40));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto client = loop.submit({with_segments(joined({{'a'}, repeated(60, -2), {'x'}}), {non_causal(60)}),
                                   with_segments(joined({{'b'}, repeated(64, -3)}), {non_causal(40), non_causal(24)}),
                                   with_segments(joined({{'c'}, repeated(30, -4), {'x'}}), {})});
  loop.backend.gate.open();

  CHECK(client->finish());
  CHECK(stream->finish());

  std::vector<size_t> sizes;
  for (const auto& batch : loop.backend.batches()) {
    if (batch.front().is_non_causal) sizes.push_back(batch.size());
  }
  std::sort(sizes.begin(), sizes.end());
  CHECK_EQ(sizes, std::vector<size_t>({24, 40, 60}));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>());
  for (int32_t i = 0; i < 3; ++i) CHECK_EQ(client->answer(i).n_tokens, 6);
}

TEST("a stream has a token of every step in which an image is read in one piece") {
  RunningLoop loop({4, 64, 60});
  loop.backend.gate.shut_after(2);
  loop.start();
  const auto stream = loop.submit(make_task('s', 1, 40));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto client = loop.submit({with_segments(joined({{'a'}, repeated(60, -2), {'x'}}), {non_causal(60)}),
                                   with_segments(joined({{'b'}, repeated(60, -3), {'x'}}), {non_causal(60)}),
                                   with_segments(joined({{'c'}, repeated(60, -4), {'x'}}), {non_causal(60)})});
  loop.backend.gate.open();

  CHECK(client->finish());
  CHECK(stream->finish());

  int n_images = 0, n_tokens = 1;  // of the stream, since the last image
  for (const auto& batch : loop.backend.batches()) {
    n_tokens += batch.front().slot == 0 ? 1 : 0;  // the stream's
    if (!batch.front().is_non_causal) continue;
    ++n_images;
    CHECK(n_tokens > 0);
    n_tokens = 0;
  }
  CHECK_EQ(n_images, 3);
  CHECK_EQ(stream->answer().n_tokens, 40);
}

TEST("an image that comes again is shared whole, and computed again where the prompt ends in it") {
  const auto check = [](const RowSegment& segment, bool is_same_slot) {
    RunningLoop loop(kSharing);
    loop.start();
    int32_t n_asked = 0;
    const auto cached = [&](const std::vector<Token>& behind) {
      const auto prompt = joined({repeated(10, 'p'), repeated(20, -2), behind});
      Task task = with_segments(prompt, {segment}, 2);
      task.slot = is_same_slot ? 0 : n_asked++;
      const auto client = loop.submit(task);
      CHECK(client->finish());
      return client->answer().cached_tokens;
    };

    CHECK_EQ(cached({'x'}), 0);
    CHECK(eventually([&] { return loop.stats().cache_entries == 1; }));
    CHECK_EQ(cached({'y'}), 30);
    CHECK_EQ(cached({}), 10);

    const auto begun = is_same_slot ? loop.backend.cuts() : loop.backend.loads();
    REQUIRE(begun.size() == 2);
    CHECK_EQ(begun[0].last_position, segment.is_non_causal ? 29 : 10);
    CHECK_EQ(begun[1].last_position, 9);
    CHECK_EQ(loop.backend.faults(), std::vector<std::string>());
  };
  for (const RowSegment& segment : {image(20, 5, 5), non_causal(20)}) {
    check(segment, true);
    check(segment, false);
  }
}

TEST("after a failed batch an image that was half read is read again from its beginning") {
  const std::vector<Token> prompt = joined({{'q'}, repeated(20, -2), {'x'}});
  RunningLoop calm;
  calm.start();
  const auto expected = calm.submit(with_segments(prompt, {image(20, 5, 5)}, 8));
  REQUIRE(expected->finish());
  RunningLoop loop({2, 8, 60});
  int n_failures = 1;
  std::vector<int32_t> begins;  // of the image's batches
  loop.backend.before_decode = [&](const ScriptedBackend&, const std::vector<Row>& rows) {
    if (rows.front().embedding == nullptr) return Status::ok();
    begins.push_back(rows.front().position);
    const bool is_inside = rows.front().position > 1;
    if (n_failures == 0 || !is_inside || rows.front().slot == rows.back().slot) return Status::ok();
    --n_failures;
    return Status(StatusCode::kInternal, "the batch failed");
  };
  loop.start();
  const auto client = loop.submit({with_segments(prompt, {image(20, 5, 5)}, 8),
                                   with_segments(joined({{'o'}, repeated(20, -3), {'x'}}), {image(20, 5, 5)}, 8)});

  CHECK(client->finish());

  CHECK_EQ(client->text(0), expected->text());
  CHECK_EQ(client->answer(1).n_tokens, 8);
  CHECK_EQ(n_failures, 0);
  CHECK(std::count(begins.begin(), begins.end(), 1) > 2);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>());
}

TEST("a preempted sequence reads its image again and says the same") {
  const std::vector<Token> prompt = joined({{'q'}, repeated(12, -2), {'x'}});
  RunningLoop calm;
  calm.start();
  const auto expected = calm.submit(with_segments(prompt, {image(12, 4, 4)}, 8));
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
  const auto client = loop.submit({make_task('o', 1, 20), with_segments(prompt, {image(12, 4, 4)}, 8)});

  CHECK(client->finish());

  CHECK_EQ(client->text(1), expected->text());
  CHECK_EQ(n_refusals, 0);
}

}  // namespace
}  // namespace corosrv
