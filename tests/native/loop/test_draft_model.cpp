// A second model that guesses: it shortens answers, and changes none.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "fakes/running_loop.h"
#include "fakes/scripted_backend.h"
#include "fakes/tasks.h"
#include "loop/draft_model.h"

namespace corosrv {
namespace {

constexpr DecodeLoop::Limits kDrafting{4, 64, 60, 1 << 20, 1, false, 0, 0, 0, 60, 16, 0.0};

using Rows = ScriptedBackend::Rows;

// Says how many microseconds a batch takes.
using Price = std::function<int64_t(const Rows&)>;

// The model, and one that says the same much faster. Time is what they take.
void give_draft(RunningLoop& loop, const Price& model, const Price& draft, int32_t context = 4096) {
  loop.time = std::make_unique<ScriptedTime>();
  loop.draft = std::make_unique<ScriptedBackend>(context);
  const auto takes = [&loop](const Price& price) {
    return [&time = *loop.time, price](const ScriptedBackend&, const Rows& rows) {
      time.pass(price(rows));
      return Status::ok();
    };
  };
  loop.backend.before_decode = takes(model);
  loop.draft->before_decode = takes(draft);
}
void give_draft(RunningLoop& loop, int32_t model_us = 2000, int32_t draft_us = 50, int32_t context = 4096) {
  const auto each = [](int32_t us) { return [us](const Rows&) { return us; }; };
  give_draft(loop, each(model_us), each(draft_us), context);
}

void check_no_faults(const RunningLoop& loop) {
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  CHECK_EQ(loop.draft->faults(), std::vector<std::string>{});
}

Task drawn(Token name, int32_t max_tokens, float temperature) {
  Sampling sampling;
  sampling.temperature = temperature;
  sampling.seed = 5;
  return make_task(name, 3, max_tokens, sampling);
}

TEST("a draft model that says the same makes an answer of few steps") {
  RunningLoop loop(kDrafting);
  give_draft(loop);
  loop.start();

  const auto client = loop.submit(make_task('a', 3, 100));

  CHECK(client->finish());
  CHECK_EQ(client->text(), said_alone(make_task('a', 3, 100)));
  check_no_faults(loop);
  CHECK(loop.stats().steps < 50);
  CHECK(loop.stats().draft_model_accepted_tokens > 50);
  CHECK(client->answer().accepted_tokens >= static_cast<int32_t>(loop.stats().draft_model_accepted_tokens));
}

TEST("whatever a draft model guesses, a text is what it is without") {
  for (const float temperature : {0.0f, 0.8f, 1.5f}) {
    for (const bool is_wrong : {false, true}) {
      RunningLoop loop(kDrafting);
      give_draft(loop);
      if (is_wrong) {
        loop.draft->spoil = [](Token, int32_t position, float* logits, size_t) {
          if (position % 3 == 0) logits['!'] = 20;
        };
      }
      loop.start();
      std::vector<std::unique_ptr<Client>> clients;
      for (const Token name : {'a', 'b', 'c'}) clients.push_back(loop.submit(drawn(name, 60 + name % 7, temperature)));

      for (const auto& client : clients) CHECK(client->finish());

      for (size_t i = 0; i < clients.size(); ++i) {
        const auto name = static_cast<Token>('a' + i);
        CHECK_EQ(clients[i]->text(), said_alone(drawn(name, 60 + name % 7, temperature)));
      }
      check_no_faults(loop);
    }
  }
}

TEST("what a slot's last task left in the draft model is cut to what the next one begins with") {
  RunningLoop loop(kDrafting);
  give_draft(loop);
  loop.start();
  for (const uint64_t owner : {1u, 1u, 2u}) {
    for (const size_t n_prompt : {9u, 12u, 5u}) {
      Task task = make_task('a', n_prompt, 40);
      task.sharing_scope.owner = owner;
      const auto client = loop.submit(task);
      CHECK(client->finish());
      CHECK_EQ(client->text(), said_alone(make_task('a', n_prompt, 40)));
      CHECK(client->answer().accepted_tokens > 10);
    }
  }
  int n_begun = 0;
  for (const Rows& rows : loop.draft->batches()) n_begun += rows[0].position == 0 && rows[0].token == 'a' ? 1 : 0;
  CHECK_EQ(n_begun, 2);  // once for each owner
  check_no_faults(loop);
}

TEST("a draft model stops where it is unsure") {
  DecodeLoop::Limits limits = kDrafting;
  limits.draft_p_min = 0.75;  // what the scripted model makes up is never as likely
  RunningLoop loop(limits);
  give_draft(loop);
  loop.start();

  const auto client = loop.submit(make_task('a', 3, 100));

  CHECK(client->finish());
  CHECK_EQ(loop.stats().draft_model_tokens, uint64_t{0});
  CHECK(loop.draft->batches().size() > 2);
  CHECK(loop.draft->batches().size() < 50);
  check_no_faults(loop);
}

TEST("a draft model that costs what the model costs is not asked") {
  RunningLoop loop(kDrafting);
  give_draft(loop, 1000, 1000);
  loop.start();

  const auto client = loop.submit(make_task('a', 3, 150));

  CHECK(client->finish());
  CHECK(loop.draft->batches().size() < 10);
  check_no_faults(loop);
}

// A row costs as much as the rest of a step does: then guesses pay for nobody.
TEST("many sequences, whose rows cost nearly all of a step, cost no time of the draft model") {
  DecodeLoop::Limits limits = kDrafting;
  limits.slots = 8;
  RunningLoop loop(limits);
  const Price by_row = [](const Rows& rows) { return 300 * static_cast<int64_t>(rows.size()); };
  give_draft(loop, by_row, [](const Rows&) { return 50; });
  loop.start();
  std::vector<Task> tasks;
  for (Token name = 'a'; name < 'i'; ++name) tasks.push_back(make_task(name, 3, 60));

  const auto client = loop.submit(tasks);

  CHECK(client->finish());
  CHECK(loop.draft->batches().size() < 15);
  check_no_faults(loop);
}

TEST("a long prompt is read in pieces, and only behind an answer that goes on for long") {
  RunningLoop loop(kDrafting);
  const Price by_row = [](const Rows& rows) { return 50 * static_cast<int64_t>(rows.size()); };
  give_draft(loop, [](const Rows&) { return 2000; }, by_row);
  loop.start();

  const auto brief = loop.submit(make_task('a', 900, 5));
  CHECK(brief->finish());
  const size_t n_brief = loop.draft->batches().size();
  const auto client = loop.submit(make_task('b', 900, 200));
  CHECK(client->finish());

  CHECK(n_brief <= 1);
  CHECK_EQ(client->text(), said_alone(make_task('b', 900, 200)));
  CHECK(client->answer().accepted_tokens > 20);
  for (const Rows& rows : loop.draft->batches()) CHECK(rows.size() <= 64);
  check_no_faults(loop);
}

TEST("a draft model with less context guesses as far as that goes") {
  RunningLoop loop(kDrafting);
  give_draft(loop, 2000, 50, 40);
  loop.start();

  const auto client = loop.submit(make_task('a', 3, 100));

  CHECK(client->finish());
  CHECK(client->answer().accepted_tokens > 10);
  for (const Rows& rows : loop.draft->batches()) CHECK(rows.back().position < 40);
  check_no_faults(loop);
}

TEST("a shift of the context, and a slot that is given back, leave the draft model behind, and no fault") {
  DecodeLoop::Limits limits = kDrafting;
  limits.slots = 1;
  limits.idle_s = 0.01;
  RunningLoop loop(limits, 1000, 64);
  give_draft(loop);
  loop.start();
  Task shifted = make_task('a', 3, 150);
  shifted.shift = ContextShift{2};

  const auto first = loop.submit(shifted);
  CHECK(first->finish());
  CHECK(eventually([&] { return !loop.draft->given_back().empty(); }));
  const auto second = loop.submit(make_task('b', 3, 50));
  CHECK(second->finish());

  CHECK_EQ(first->answer().n_tokens, 150);
  CHECK_EQ(second->text(), said_alone(make_task('b', 3, 50)));
  CHECK(second->answer().accepted_tokens > 10);
  check_no_faults(loop);
}

TEST("where slots share cells that are too few, whoever is pre-empted goes on as before") {
  DecodeLoop::Limits limits = kDrafting;
  limits.shared_cells = 160;
  RunningLoop loop(limits, 1000, 160);
  give_draft(loop, 500, 20);
  loop.backend.shared_cells = 160;
  loop.start();
  std::vector<std::unique_ptr<Client>> clients;
  for (const Token name : {'a', 'b', 'c'}) clients.push_back(loop.submit(make_task(name, 3, 120)));
  clients[2]->reader().cancel();

  for (const auto& client : clients) CHECK(client->finish());
  CHECK_EQ(clients[0]->text(), said_alone(make_task('a', 3, 120)));
  CHECK_EQ(clients[1]->text(), said_alone(make_task('b', 3, 120)));
  check_no_faults(loop);
}

TEST("a draft model that fails is asked no more, and the answer goes on") {
  for (const bool throws : {false, true}) {
    RunningLoop loop(kDrafting);
    give_draft(loop);
    int n_left = 5;
    loop.draft->before_decode = [&](const ScriptedBackend&, const Rows&) {
      if (--n_left > 0) return Status::ok();
      if (throws) throw std::runtime_error("no such row");
      return Status(StatusCode::kInternal, "no such row");
    };
    loop.start();

    const auto client = loop.submit(make_task('a', 3, 100));

    CHECK(client->finish());
    CHECK_EQ(client->text(), said_alone(make_task('a', 3, 100)));
    CHECK_EQ(loop.draft->batches().size(), size_t{5});
    CHECK(eventually([&] { return loop.draft_trouble() == "no such row"; }));
    CHECK_EQ(loop.draft->given_back().size(), size_t{8});  // each slot: when the loop begins, and now
    check_no_faults(loop);
  }
}

TEST("only a model with the same tokens, that can be cut, may guess for another") {
  const std::vector<std::string> words(200, "word");
  const auto said = [&](const std::function<void(ScriptedBackend&)>& change, std::vector<std::string> its_words) {
    const ScriptedBackend model(64, {"one", "two"});
    ScriptedBackend draft(64, std::move(its_words));
    change(draft);
    return check_draft(model, draft, "d.gguf, m.gguf").message();
  };
  const auto nothing = [](ScriptedBackend&) {};
  const std::string words_before = "the draft model cannot guess for the model (d.gguf, m.gguf): ";

  CHECK_EQ(said(nothing, {"one", "two"}), "");
  CHECK_EQ(said(nothing, {"one"}), "");  // padded otherwise
  CHECK_EQ(said(nothing, {"one", "too"}), words_before + "its tokens are others, the first of them number 258");
  CHECK_EQ(said(nothing, words), words_before + "it has 457 tokens in place of 259");
  CHECK_EQ(said([](auto& draft) { draft.can_save = false; }, {"one", "two"}),
           words_before + "what it remembers cannot be cut, as that of a recurrent model");
  CHECK_EQ(said([](auto& draft) { draft.changeable_info().can_generate = false; }, {"one", "two"}),
           words_before + "it makes vectors and no text");
  CHECK_EQ(said([](auto& draft) { draft.changeable_info().vocab_type = 2; }, {"one", "two"}),
           words_before + "its vocabulary is of another type");
}

}  // namespace
}  // namespace corosrv
