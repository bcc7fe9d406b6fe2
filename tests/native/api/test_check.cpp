// What a task may say of its embedding rows: each number is checked before anything is made of it.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "api/check.h"
#include "api/to_core.h"
#include "check.h"
#include "fakes/scripted_backend.h"

namespace corosrv {
namespace {

constexpr Token kRow = -5;

// A line of three rows, in one segment.
std::vector<int32_t> line() { return {0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0}; }

// A task with the memory that it points to: a token, three rows, a token.
struct RowTask {
  std::vector<Token> tokens{'a', kRow, kRow, kRow, 'b'};
  std::vector<float> rows = std::vector<float>(6, 0.5f);  // two numbers each
  std::vector<int32_t> positions = line();
  std::vector<corosrv_row_segment> segments{{3, 0, 3, nullptr}};
  corosrv_task task{};

  RowTask() { segments[0].positions = positions.data(); }

  const corosrv_task& get() {
    task.tokens = tokens.data();
    task.n_tokens = tokens.size();
    task.rows = rows.data();
    task.n_rows = rows.size() / 2;
    task.row_segments = segments.data();
    task.n_row_segments = segments.size();
    task.sampling.top_p = task.sampling.typical_p = task.sampling.repeat_penalty = 1;
    task.weight = 1;
    return task;
  }
};

std::string refusal(RowTask task, bool is_mrope = true, int32_t row_width = 2) {
  ScriptedBackend backend;
  backend.changeable_info().is_mrope = is_mrope;
  backend.changeable_info().row_width = row_width;
  const Status status = check_task(task.get(), backend);
  return status.is_ok() ? "" : status.message();
}

template <typename Edit>
std::string refusal_after(Edit edit) {
  RowTask task;
  edit(task);
  task.segments[0].positions = task.segments[0].positions == nullptr ? nullptr : task.positions.data();
  return refusal(std::move(task));
}

bool says(const std::string& message, const std::string& words) { return message.find(words) != std::string::npos; }

TEST("rows at positions of a line are taken, and come to the core as they are") {
  RowTask task;

  CHECK_EQ(refusal(task), std::string());

  const std::vector<RowSegment> segments = to_segments(task.get());
  REQUIRE(segments.size() == 1);
  CHECK_EQ(segments[0].n_rows, 3);
  CHECK_EQ(segments[0].n_positions, 3);
  CHECK(!segments[0].is_non_causal);
  REQUIRE(segments[0].positions.size() == 3);
  CHECK_EQ(segments[0].positions[2].x, 2);
}

TEST("a segment without positions moves its sequence by its rows") {
  RowTask task;
  task.segments = {{3, 1, 0, nullptr}};

  CHECK_EQ(refusal(task, false), std::string());

  const std::vector<RowSegment> segments = to_segments(task.get());
  CHECK_EQ(segments[0].n_positions, 3);
  CHECK(segments[0].is_non_causal);
  CHECK(segments[0].positions.empty());
}

TEST("segments that are not those of the rows are refused") {
  const std::string words = "not those of the prompt";

  CHECK(says(refusal_after([](RowTask& task) { task.segments.push_back({1, 0, 1, nullptr}); }), words));
  CHECK(says(refusal_after([](RowTask& task) { task.segments[0] = {2, 0, 2, nullptr}; }), words));
  CHECK(says(refusal_after([](RowTask& task) { task.segments[0] = {4, 0, 4, nullptr}; }), words));
  CHECK(says(refusal_after([](RowTask& task) { task.segments[0] = {0, 0, 0, nullptr}; }), words));
  CHECK(says(refusal_after([](RowTask& task) { task.segments[0] = {-3, 0, 0, nullptr}; }), words));
  CHECK(
      says(refusal_after([](RowTask& task) { task.segments = {{std::numeric_limits<int32_t>::max(), 0, 0, nullptr}}; }),
           words));
  CHECK(says(refusal_after([](RowTask& task) { task.tokens = {kRow, kRow, 'a', kRow, 'b'}; }), words));
}

TEST("a segment that reaches beyond a prompt which ends in rows is refused") {
  const std::string refused = refusal_after([](RowTask& task) {
    task.tokens.pop_back();
    task.segments[0] = {4, 0, 4, nullptr};
  });

  CHECK(says(refused, "not those of the prompt"));
}

TEST("positions that memory cannot be kept and cut by are refused") {
  const auto with = [](size_t number, int32_t value) {
    return refusal_after([&](RowTask& task) { task.positions[number] = value; });
  };
  const auto moving_by = [](int32_t n_positions) {
    return refusal_after([&](RowTask& task) { task.segments[0].n_positions = n_positions; });
  };

  CHECK(says(moving_by(0), "move by at least 1"));
  CHECK(says(moving_by(-1), "move by at least 1"));
  CHECK(says(moving_by(4), "one for each at most"));
  CHECK(says(with(0, -1), "fall"));
  CHECK(says(with(8, 3), "reach beyond"));
  CHECK(says(with(0, 1), "fall"));
  CHECK(says(with(1, -1), "outside of its segment"));
  CHECK(says(with(6, 4), "outside of its segment"));
  CHECK(says(with(11, -1), "outside of its segment"));
  CHECK_EQ(with(6, 3), std::string());
}

TEST("rows without positions of their own take one each, no more and no fewer") {
  const auto moving_by = [](int32_t n_positions) {
    return refusal_after([&](RowTask& task) { task.segments[0] = {3, 0, n_positions, nullptr}; });
  };

  CHECK(says(moving_by(2), "take one each"));
  CHECK(says(moving_by(4), "take one each"));
  CHECK_EQ(moving_by(3), std::string());
  CHECK_EQ(moving_by(0), std::string());
}

TEST("a model without M-RoPE takes no positions, and one without rows takes none of them") {
  CHECK(says(refusal({}, false), "no M-RoPE"));
  CHECK(says(refusal({}, true, 0), "takes no embedding rows"));
}

TEST("rows are refused where they are no numbers, or not as many as their ids") {
  CHECK(
      says(refusal_after([](RowTask& task) { task.rows[5] = std::numeric_limits<float>::quiet_NaN(); }), "not finite"));
  CHECK(says(refusal_after([](RowTask& task) { task.rows.resize(4); }), "negative id for each"));
  CHECK(says(refusal_after([](RowTask& task) { task.rows.clear(); }), "unknown token"));
}

TEST("what has no meaning for rows is refused") {
  CHECK(says(refusal_after([](RowTask& task) { task.task.scores_prompt = 1; }), "no tokens to be scored"));
  CHECK(!refusal_after([](RowTask& task) { task.task.kind = COROSRV_EMBED; }).empty());
}

}  // namespace
}  // namespace corosrv
