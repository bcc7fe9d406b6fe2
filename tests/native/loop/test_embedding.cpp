// Vectors through the decode loop, beside generations.
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

using Vector = std::vector<float>;

constexpr DecodeLoop::Limits kSmallSteps{4, 8, 60};  // rows: fewer than the prompts below have tokens

std::vector<Token> numbers(size_t count) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<Token>(i % 200));
  return tokens;
}

TEST("a prompt that is read in pieces becomes the vector of all its tokens") {
  RunningLoop loop(kSmallSteps);
  loop.start();

  const auto client = loop.submit(make_embedding(numbers(101)));

  CHECK(client->finish());
  CHECK_EQ(client->answer().finish, Finish::kStop);
  CHECK(client->answer().vector == (Vector{50, 50}));
  CHECK_EQ(client->answer().prompt_tokens, 101);
  CHECK_EQ(client->answer().n_tokens, 0);
  CHECK_EQ(client->answer().n_terminal, 1);
  CHECK(loop.backend.faults().empty());
  CHECK(eventually([&] { return loop.stats().prompt_tokens == 101; }));
}

TEST("vectors and texts of one time are those of each alone") {
  RunningLoop loop(kSmallSteps);
  loop.backend.scripts['a'] = "a text that takes its time beside the vectors";
  loop.start();

  const auto text = loop.submit(make_task('a', 20));
  const auto first = loop.submit({make_embedding(numbers(31)), make_embedding({9, 1})});
  const auto all = loop.submit(make_embedding({5, 6}, Pooling::kNone));

  for (const auto& client : {text.get(), first.get(), all.get()}) CHECK(client->finish());
  CHECK_EQ(text->text(), "a text that takes its time beside the vectors");
  CHECK(first->answer(0).vector == (Vector{15, 15}));
  CHECK(first->answer(1).vector == (Vector{5, 0.5f}));
  CHECK(all->answer().vector == (Vector{5, 0, 6, 1}));
  CHECK(loop.backend.faults().empty());
}

TEST("no batch holds both texts and vectors") {
  RunningLoop loop(kSmallSteps);
  loop.start();

  std::vector<std::unique_ptr<Client>> clients;
  clients.push_back(loop.submit(make_task('a', 30, 5)));
  clients.push_back(loop.submit(make_embedding(std::vector<Token>(30, 'v'))));

  for (const auto& client : clients) CHECK(client->finish());
  for (const auto& batch : loop.backend.batches()) {
    for (const Row& row : batch) CHECK_EQ(row.token == 'v', batch[0].token == 'v');
  }
}

TEST("a vector does not begin from what others computed, nor leave anything behind") {
  DecodeLoop::Limits limits = kSmallSteps;
  limits.cache_bytes = 1 << 20;
  RunningLoop loop(limits);
  loop.start();
  const Task text = make_task('v', 60, 2);
  const Task vector = make_embedding(text.prompt, Pooling::kCls);

  const auto before = loop.submit(text);
  CHECK(before->finish());
  CHECK(eventually([&] { return loop.stats().cache_entries == 1; }));
  for (int i = 0; i < 2; ++i) {
    const auto client = loop.submit(vector);
    CHECK(client->finish());
    CHECK_EQ(client->answer().cached_tokens, 0);
    CHECK(client->answer().vector == (Vector{'v', 0}));
  }
  CHECK_EQ(loop.stats().cache_entries, 1);
}

TEST("cancelling an embedding ends it within the step, waiting or half read (I5)") {
  RunningLoop loop({1, 8, 60});
  loop.backend.gate.shut();
  loop.start();
  const auto client = loop.submit({make_embedding(numbers(100)), make_embedding(numbers(3))});
  REQUIRE(loop.backend.gate.wait_until_held());

  client->reader().cancel();
  loop.backend.gate.open();

  CHECK(client->finish());
  for (const size_t index : {0, 1}) {
    CHECK_EQ(client->answer(index).finish, Finish::kCancelled);
    CHECK_EQ(client->answer(index).n_terminal, 1);
    CHECK(client->answer(index).vector.empty());
  }
  CHECK_EQ(loop.backend.batches().size(), size_t{1});
}

TEST("unread vectors pause their job at the reader's limit, and nobody else's (I6)") {
  RunningLoop loop({2, 64, 60});
  loop.start();
  constexpr size_t kVectorBytes = 2 * sizeof(float);

  const auto many = loop.submit(std::vector<Task>(50, make_embedding({1, 2, 3})), 4 * kVectorBytes);
  CHECK(eventually([&] { return loop.stats().paused > 0; }));
  const auto other = loop.submit(make_embedding({4}));
  CHECK(other->finish());

  const LoopStats stats = loop.stats();
  CHECK(stats.tasks_stop < 10);
  for (size_t i = 0; i < 50; ++i) many->take();
  CHECK(many->finish());
}

TEST("an embedding that fails ends alone (I10)") {
  RunningLoop loop;
  loop.backend.before_decode = [](const ScriptedBackend& backend, const std::vector<Row>& rows) {
    return backend.has(rows, 'x') ? Status(StatusCode::kInternal, "x is bad") : Status::ok();
  };
  loop.start();

  const auto client = loop.submit({make_embedding({'x', 1}), make_embedding({'y', 'y'})});

  CHECK(client->finish());
  CHECK_EQ(client->answer(0).finish, Finish::kError);
  CHECK_EQ(client->answer(0).message, "x is bad");
  CHECK(client->answer(1).vector == (Vector{'y', 0.5f}));
}

TEST("a model that reads whole prompts gets each in one piece, and as many as fit into a step") {
  RunningLoop loop({4, 64, 60, 0, 1, true});
  loop.start();

  const auto client = loop.submit({make_embedding(numbers(60)), make_embedding(std::vector<Token>(30, 'b')),
                                   make_embedding(std::vector<Token>(30, 'c')), make_embedding({'d'})});

  CHECK(client->finish());
  for (const auto& batch : loop.backend.batches()) {
    CHECK(batch.size() <= 64);
    for (size_t i = 0; i < batch.size(); ++i) {
      const bool is_first = i == 0 || batch[i - 1].slot != batch[i].slot;
      CHECK_EQ(batch[i].position, is_first ? 0 : batch[i - 1].position + 1);
    }
  }
  CHECK_EQ(loop.backend.batches().size(), size_t{2});  // 60 and 1, 30 and 30
  CHECK(loop.backend.faults().empty());
}

}  // namespace
}  // namespace corosrv
