#include <sys/resource.h>

#include <atomic>
#include <random>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "fakes/child.h"
#include "fakes/client.h"
#include "fakes/gate.h"
#include "fakes/scripted_backend.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "loop/engine.h"
#include "model/embedded_rows.h"

namespace corosrv {
namespace {

const Engine::Limits kLimits = {{4, 64, 60}, 1000, 1 << 20};

// An engine around a scripted model, and the model while the engine lives.
class ScriptedEngine {
 public:
  explicit ScriptedEngine(const std::function<void(ScriptedBackend&)>& set_up = {},
                          const Engine::Limits& limits = kLimits)
      : engine_(std::make_unique<Engine>(limits, [this, set_up](Status&, LoadWatch&) {
          auto backend = std::make_unique<ScriptedBackend>(100);
          if (set_up) set_up(*backend);
          model = backend.get();
          return backend;
        })) {
    REQUIRE(is_readable(engine_->fd(), kPatience));
  }
  ~ScriptedEngine() {
    if (ScriptedBackend* backend = model) backend->gate.open();
  }

  Engine* operator->() { return engine_.get(); }

  std::unique_ptr<Client> submit(std::vector<Task> tasks) {
    const size_t n_tasks = tasks.size();
    for (size_t i = 0; i < n_tasks; ++i) tasks[i].index = static_cast<int32_t>(i);
    std::shared_ptr<Reader> reader;
    refusal = engine_->submit(std::move(tasks), reader);
    return refusal.is_ok() ? std::make_unique<Client>(std::move(reader), n_tasks) : nullptr;
  }
  std::unique_ptr<Client> submit(Task task) { return submit(std::vector<Task>{std::move(task)}); }

  std::atomic<ScriptedBackend*> model{nullptr};
  Status refusal = Status::ok();

 private:
  std::unique_ptr<Engine> engine_;
};

EngineState state_of(Engine& engine, std::string* message = nullptr) {
  std::string words;
  const EngineState state = engine.state(words);
  if (message != nullptr) *message = words;
  return state;
}

TEST("an engine is starting while its model loads, refuses work, and its descriptor turns readable after") {
  Gate gate;
  gate.shut();
  Engine engine(kLimits, [&gate](Status&, LoadWatch&) {
    gate.pass();
    return std::make_unique<ScriptedBackend>();
  });
  std::shared_ptr<Reader> reader;

  CHECK(gate.wait_until_held());
  CHECK_EQ(state_of(engine), EngineState::kStarting);
  CHECK(!is_readable(engine.fd(), 0));
  CHECK(engine.backend() == nullptr);
  CHECK_EQ(engine.submit({make_task('a')}, reader).code(), StatusCode::kNotReady);
  CHECK_EQ(engine.stats().slots, 4);

  gate.open();
  CHECK(is_readable(engine.fd(), kPatience));
  CHECK(is_readable(engine.fd(), 0));
  CHECK_EQ(state_of(engine), EngineState::kReady);
  CHECK(engine.submit({make_task('a', 1, 1)}, reader).is_ok());
}

TEST("a model that cannot be loaded is a failed engine that says why") {
  Engine refused(kLimits, [](Status& status, LoadWatch&) -> std::unique_ptr<Backend> {
    status = Status(StatusCode::kInvalid, "no such file");
    return nullptr;
  });
  Engine threw(kLimits,
               [](Status&, LoadWatch&) -> std::unique_ptr<Backend> { throw std::runtime_error("out of memory"); });
  std::string message;
  std::shared_ptr<Reader> reader;

  CHECK(is_readable(refused.fd(), kPatience));
  CHECK_EQ(state_of(refused, &message), EngineState::kFailed);
  CHECK_EQ(message, "no such file");
  CHECK_EQ(refused.submit({make_task('a')}, reader).code(), StatusCode::kNotReady);
  CHECK(is_readable(threw.fd(), kPatience));
  CHECK_EQ(state_of(threw, &message), EngineState::kFailed);
  CHECK(message.find("out of memory") != std::string::npos);
}

TEST("an engine says how far its model is loaded, and half of that is packing where weights are packed") {
  LoadWatch load;
  CHECK_EQ(load.part(), 0.0);
  CHECK(load.note_read(0.5F));
  CHECK_EQ(load.part(), 0.5);
  load.expect_packing();
  CHECK_EQ(load.part(), 0.25);
  load.note_size(1000);
  CHECK(load.note_read(1.0F));
  load.note_packed(500);
  CHECK_EQ(load.part(), 0.75);
  load.note_packed(2000);
  CHECK_EQ(load.part(), 1.0);

  Gate gate;
  gate.shut();
  Engine engine(kLimits, [&gate](Status&, LoadWatch& watch) {
    watch.note_read(0.25F);
    gate.pass();
    return std::make_unique<ScriptedBackend>();
  });

  CHECK(gate.wait_until_held());
  CHECK_EQ(engine.loaded_part(), 0.25);
  gate.open();
}

TEST("an engine that is stopped while its model loads gives up the load") {
  Gate has_begun;
  has_begun.shut();
  Engine engine(kLimits, [&has_begun](Status& status, LoadWatch& load) -> std::unique_ptr<Backend> {
    has_begun.pass();
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (load.note_read(0.1F) && Clock::now() < deadline) std::this_thread::yield();
    status = Status(StatusCode::kClosed, "given up");
    return nullptr;
  });
  CHECK(has_begun.wait_until_held());
  has_begun.open();

  engine.stop();
  std::string message;

  CHECK_EQ(state_of(engine, &message), EngineState::kFailed);
  CHECK_EQ(message, "given up");
}

TEST("an image that is read in one piece is refused where a step has too few rows, before anything is computed") {
  ScriptedEngine engine;
  const auto submit = [&](int32_t n_rows) {
    Task task = make_task('a', 1, 1);
    task.prompt.resize(1 + static_cast<size_t>(n_rows), -2);
    const RowSegment segment{n_rows, true, n_rows, {}};
    const std::vector<float> numbers(static_cast<size_t>(n_rows), 0.5f);
    task.rows = std::make_shared<EmbeddedRows>(task.prompt, 1, numbers, std::vector<RowSegment>{segment});
    return engine.submit(task);
  };

  CHECK(submit(65) == nullptr);
  CHECK_EQ(engine.refusal.code(), StatusCode::kInvalid);
  CHECK(engine.refusal.message().find("65 rows") != std::string::npos);
  CHECK(engine.refusal.message().find("at most 64") != std::string::npos);
  CHECK(engine.model.load()->batches().empty());
  const auto client = submit(64);
  REQUIRE(client != nullptr);
  CHECK(client->finish());
}

TEST("a prompt that fills the context is refused with both numbers") {
  ScriptedEngine engine;

  CHECK(engine.submit({make_task('a', 10, 1), make_task('b', 100, 1)}) == nullptr);
  CHECK_EQ(engine.refusal.code(), StatusCode::kTooLong);
  CHECK(engine.refusal.message().find("has 100 tokens") != std::string::npos);
  const auto client = engine.submit(make_task('a', 99));

  CHECK(client->finish());
  CHECK_EQ(client->answer().finish, Finish::kLength);
  CHECK_EQ(client->answer().n_tokens, 1);
}

TEST("without a descriptor left a task is run all the same, and its reader is looked at") {
  ScriptedEngine engine;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto client = engine.submit(make_task('a', 1, 3));
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(client != nullptr);

  CHECK(!client->reader().is_open());
  CHECK(client->finish());
  CHECK_EQ(client->answer().n_tokens, 3);
  CHECK_EQ(client->answer().n_terminal, 1);
  CHECK_EQ(engine->stats().readers_polled, uint64_t{1});
  CHECK_EQ(engine->stats().eventfd_writes, uint64_t{0});
}

// Whoever has a reader gets one terminal chunk, an error with these words in it.
void check_ended(Client& client, size_t n_tasks, const std::string& words) {
  CHECK(client.finish());
  for (size_t i = 0; i < n_tasks; ++i) {
    CHECK_EQ(client.answer(i).n_terminal, 1);
    CHECK_EQ(client.answer(i).finish, Finish::kError);
    CHECK(client.answer(i).message.find(words) != std::string::npos);
  }
  CHECK(!is_readable(client.reader().fd(), 0));
}

TEST("closing an engine ends what runs, what waits and what was just submitted (I4)") {
  ScriptedEngine engine([](ScriptedBackend& backend) { backend.gate.shut(); }, {{1, 8, 60}, 1000, 1 << 20});
  const auto running = engine.submit(make_task('r'));
  REQUIRE(engine.model.load()->gate.wait_until_held());
  const auto waiting = engine.submit({make_task('w'), make_task('w')});
  std::thread closing([&engine] { engine->stop(); });
  // Until the close is seen, submissions are taken: the last one that was is as new as can be.
  std::vector<std::unique_ptr<Client>> just_submitted;
  while (auto client = engine.submit(make_task('j'))) {
    just_submitted.push_back(std::move(client));
    if (just_submitted.size() == 900) break;  // before the queue is full
    if (just_submitted.size() > 100) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  engine.model.load()->gate.open();
  closing.join();

  check_ended(*running, 1, "shutting down");
  check_ended(*waiting, 2, "shutting down");
  for (const auto& client : just_submitted) check_ended(*client, 1, "shutting down");
  CHECK(engine.submit(make_task('x')) == nullptr);
  CHECK_EQ(engine.refusal.code(), StatusCode::kClosed);
  CHECK_EQ(engine->stats().tasks_error, uint64_t{3} + just_submitted.size());
}

TEST("an engine that dies ends what runs, what waits and what was just submitted, and refuses what comes (I4)") {
  ScriptedEngine engine(
      [](ScriptedBackend& backend) {
        backend.gate.shut();
        backend.on_forget = [](int32_t) { throw std::runtime_error("the device fell off the bus"); };
      },
      {{2, 8, 60}, 1000, 1 << 20});
  // The first ends with its first token, and its slot is the engine's death; the second runs then, the third waits.
  const auto ending = engine.submit({make_task('e', 1, 1), make_task('r'), make_task('w')});
  REQUIRE(engine.model.load()->gate.wait_until_held());
  std::vector<std::unique_ptr<Client>> just_submitted;
  for (int i = 0; i < 10; ++i) just_submitted.push_back(engine.submit({make_task('o'), make_task('p')}));
  engine.model.load()->gate.open();

  REQUIRE(ending->finish());
  CHECK_EQ(ending->answer(0).finish, Finish::kLength);
  for (const size_t i : {1u, 2u}) {
    CHECK_EQ(ending->answer(i).n_terminal, 1);
    CHECK(ending->answer(i).message.find("fell off the bus") != std::string::npos);
  }
  for (const auto& client : just_submitted) check_ended(*client, 2, "fell off the bus");
  CHECK(engine.submit(make_task('x')) == nullptr);
  CHECK_EQ(engine.refusal.code(), StatusCode::kClosed);
  std::string message;
  CHECK_EQ(engine->state(message), EngineState::kFailed);
  CHECK(message.find("fell off the bus") != std::string::npos);
}

TEST("an engine that dies lets a side process go on") {
  const Child child;
  ScriptedEngine engine([](ScriptedBackend& backend) {
    backend.gate.shut();
    backend.on_forget = [](int32_t) { throw std::runtime_error("the device fell off the bus"); };
  });
  CHECK(engine->set_side_process(child.open(), {0.1}).is_ok());
  const auto client = engine.submit(make_task('e', 1, 1));
  REQUIRE(engine.model.load()->gate.wait_until_held());
  CHECK(child.becomes_stopped());

  engine.model.load()->gate.open();
  REQUIRE(client->finish());
  CHECK(child.goes_on());
}

TEST("readers outlive their engine, with what they had not read") {
  std::unique_ptr<Client> client;
  {
    ScriptedEngine engine([](ScriptedBackend& backend) { backend.scripts['a'] = "unread"; });
    client = engine.submit(make_task('a'));
    CHECK(eventually([&] { return engine->stats().tasks_stop == 1; }));
  }

  client->reader().cancel();
  CHECK(client->finish());
  CHECK_EQ(client->text(), "unread");
}

TEST("stopping twice is harmless, and a stopped engine says that it is") {
  ScriptedEngine engine;

  engine->stop();
  engine->stop();

  std::string message;
  CHECK_EQ(engine->state(message), EngineState::kStopped);
}

// What one client of the storm does: submits and then reads to the end, cancels early or late, or goes away.
void live_for_a_while(Engine& engine, uint32_t seed, const std::atomic<bool>& is_over, std::atomic<int>& n_ended) {
  std::mt19937 random(seed);
  while (!is_over) {
    std::vector<Task> tasks;
    for (auto i = 0; i < static_cast<int>(1 + random() % 3); ++i) {
      tasks.push_back(make_task('a', 1 + random() % 40, static_cast<int32_t>(random() % 30)));
      tasks.back().index = i;
    }
    const size_t n_tasks = tasks.size();
    std::shared_ptr<Reader> reader;
    const Status status = engine.submit(std::move(tasks), reader);
    if (status.code() == StatusCode::kClosed) return;
    if (!status.is_ok()) continue;
    Client client(reader, n_tasks);
    reader.reset();
    const auto fate = random() % 4;
    if (fate == 1) CHECK(client.wait());
    if (fate != 0) client.reader().cancel();
    if (fate == 3) continue;  // goes away, as corosrv_reader_close does
    CHECK(client.finish());
    for (size_t i = 0; i < n_tasks; ++i) CHECK_EQ(client.answer(i).n_terminal + client.answer(i).n_late, 1);
    ++n_ended;
  }
}

TEST("a storm of clients, drained and closed at any moment, gives each its one end (I4)") {
  std::mt19937 random(7);
  const int alive_before = Reader::alive();
  for (int round = 0; round < 12; ++round) {
    std::atomic<bool> is_over{false};
    std::atomic<int> n_ended{0};
    {
      ScriptedEngine engine({}, {{3, 16, 60}, 8, 32});
      Engine& inner = *engine.operator->();
      std::vector<std::thread> clients;
      for (uint32_t i = 0; i < 4; ++i) {
        const auto seed = static_cast<uint32_t>(random());
        clients.emplace_back([&inner, seed, &is_over, &n_ended] { live_for_a_while(inner, seed, is_over, n_ended); });
      }
      const auto moment = static_cast<int>(random() % 60);
      CHECK(eventually([&] { return n_ended >= moment; }));
      if (round % 3 == 0) engine->drain("draining");
      if (round % 3 != 2) engine->stop();
      is_over = round % 3 == 2;
      for (std::thread& client : clients) client.join();
    }
    CHECK_EQ(Reader::alive(), alive_before);
  }
}

}  // namespace
}  // namespace corosrv
