#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "fakes/scripted_backend.h"
#include "fakes/tasks.h"
#include "handover/slot_request.h"
#include "loop/decode_loop.h"
#include "recording/player.h"
#include "recording/recorder.h"

namespace corosrv {
namespace {

// Jobs by their numbers, which is what a recording has of their tasks here.
using Jobs = std::vector<std::vector<Task>>;

std::string name_of(size_t job, size_t task, Clock::time_point deadline) {
  return std::to_string(job) + "/" + std::to_string(task) + "/" + std::to_string(deadline.time_since_epoch().count());
}

Status task_of(const Jobs& jobs, const std::string& name, Task& task) {
  const size_t slash = name.find('/'), last = name.rfind('/');
  const size_t job = std::stoul(name), place = std::stoul(name.substr(slash + 1));
  if (job >= jobs.size() || place >= jobs[job].size()) return Status(StatusCode::kInvalid, "there is no such task");
  task = jobs[job][place];
  task.deadline = Clock::time_point(Clock::duration(std::stoll(name.substr(last + 1))));
  return Status::ok();
}

class RecordFile {
 public:
  RecordFile() {
    char path[] = "/tmp/corosrv-replay-XXXXXX";
    fd_ = ::mkstemp(path);
    ::unlink(path);
  }
  ~RecordFile() { ::close(fd_); }
  int copy() const { return ::dup(fd_); }
  int fd() const { return fd_; }
  uint64_t size() const { return static_cast<uint64_t>(::lseek(fd_, 0, SEEK_END)); }

 private:
  int fd_;
};

struct Case {
  DecodeLoop::Limits limits{4, 64, 60, 1 << 20, 2};
  uint64_t bytes = 64 << 20;
  std::function<void(ScriptedBackend&)> set_up = [](ScriptedBackend&) {};
};

// A client that may be slow, leave, or stop reading.
struct Client {
  std::shared_ptr<Reader> reader;
  size_t n_left;
  bool is_slow;

  bool read() {
    std::vector<Chunk> chunks;
    reader->take(chunks);
    for (const Chunk& chunk : chunks) n_left -= chunk.finish == Finish::kUnfinished ? 0 : 1;
    return n_left == 0;
  }
};

// Records a loop that gets these jobs at random times from clients that read, are slow, or leave.
void record(const Case& one, const Jobs& jobs, const RecordFile& file, uint32_t seed, size_t most_live = 40) {
  const auto inbox = std::make_shared<Inbox>(size_t{100'000});
  ScriptedBackend backend(256);
  one.set_up(backend);
  Recorder recorder(file.copy(), one.bytes);
  DecodeLoop loop(one.limits, *inbox, backend, &recorder);
  std::thread thread([&loop] { loop.run(); });
  std::mt19937 random(seed);
  const auto chance = [&random](uint32_t of) { return random() % of == 0; };
  std::vector<Client> clients;
  std::vector<std::shared_ptr<SlotRequest>> requests;
  for (size_t next = 0; next < jobs.size() || !clients.empty();) {
    while (next < jobs.size() && clients.size() < most_live && !chance(3)) {
      std::vector<Task> tasks = jobs[next];
      for (size_t i = 0; i < tasks.size(); ++i) {
        tasks[i].index = static_cast<int32_t>(i);
        tasks[i].id = static_cast<int64_t>(next);
        if (chance(20)) tasks[i].deadline = Clock::now() + std::chrono::milliseconds(random() % 20);
        tasks[i].recorded = name_of(next, i, tasks[i].deadline);
      }
      const size_t n_tasks = tasks.size();
      auto reader = std::make_shared<Reader>(chance(2) ? 16 : 1 << 20, inbox);
      CHECK(inbox->submit(std::move(tasks), reader).is_ok());
      clients.push_back({std::move(reader), n_tasks, chance(3)});
      ++next;
    }
    if (chance(50)) {
      const auto action = chance(2) ? SlotRequest::Action::kErase : SlotRequest::Action::kSave;
      requests.push_back(std::make_shared<SlotRequest>(action, static_cast<int32_t>(random() % 4), 0));
      (void)inbox->request_slot(requests.back());
    }
    if (chance(4) && !requests.empty()) requests.back()->abandon();
    for (size_t i = clients.size(); i-- > 0;) {
      if (chance(200)) clients[i].reader->cancel();
      if ((clients[i].is_slow && !chance(8)) || !clients[i].read()) continue;
      std::swap(clients[i], clients.back());
      clients.pop_back();
    }
    if (chance(3)) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    // Now and then nothing is left to do.
    if (chance(100)) most_live = chance(2) ? 1 : 40;
  }
  inbox->close("the test is over");
  thread.join();
  CHECK_EQ(recorder.trouble(), "");
  CHECK_EQ(backend.n_threads, 0);  // nobody chose: how results round does not change on the way
}

struct Result {
  ReplayCounts counts;
  std::string lines;
};

Result replay(const Case& one, const Jobs& jobs, const RecordFile& file, Player::Options options = {}) {
  Inbox inbox(100'000);
  ScriptedBackend backend(256);
  one.set_up(backend);
  Player player(
      file.copy(), options,
      [&](const std::string& name, Task& task) {
        const Status status = task_of(jobs, name, task);
        task.id = static_cast<int64_t>(std::stoul(name));
        return status;
      },
      [](const std::vector<Token>&) {});
  Result result;
  if (!player.can_begin()) return result;
  {
    DecodeLoop loop(one.limits, inbox, backend, &player);
    try {
      loop.run();
    } catch (const Tape::End&) {
    }
  }
  result.lines = player.take_lines(result.counts);
  return result;
}

Jobs random_jobs(size_t n_jobs, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&random](uint32_t limit) { return static_cast<int32_t>(random() % limit); };
  Jobs jobs;
  for (size_t i = 0; i < n_jobs; ++i) {
    Task task = make_task(Token('A' + below(20)), 1 + static_cast<size_t>(below(below(8) == 0 ? 200 : 30)), below(40));
    if (below(3) > 0) {
      task.sampling.temperature = 1.0f;
      task.sampling.seed = static_cast<uint32_t>(random());
    }
    if (below(10) == 0) task = make_embedding(std::vector<Token>(static_cast<size_t>(1 + below(20)), 'e'));
    task.priority = 1 + below(9);
    task.sharing_scope.owner = static_cast<uint64_t>(below(3));
    if (below(8) == 0) task.stops = {std::string(1, static_cast<char>('a' + below(26)))};
    if (below(6) == 0 && !task.vectors) task.shift = ContextShift{4, 0};
    if (below(12) == 0) task.slot = below(4);
    const int32_t n_tasks = below(5) == 0 ? 1 + below(4) : 1;
    jobs.emplace_back();
    for (int32_t n = 0; n < n_tasks; ++n) {
      jobs.back().push_back(task);
      jobs.back().back().sampling.seed += static_cast<uint32_t>(n);
    }
  }
  return jobs;
}

size_t n_tasks_of(const Jobs& jobs) {
  size_t n_tasks = 0;
  for (const auto& job : jobs) n_tasks += job.size();
  return n_tasks;
}

void check_same(const Result& result) {
  CHECK(result.counts.is_over || result.lines.empty());
  CHECK_EQ(result.counts.steps_differ, uint64_t{0});
  CHECK_EQ(result.counts.texts_differ, uint64_t{0});
  CHECK(result.counts.steps > 0);
  if (result.counts.steps_differ > 0) CHECK_EQ(result.lines, "");
}

TEST("a thousand random jobs replay to the same plans, batches and texts") {
  const Case one;
  const Jobs jobs = random_jobs(1000, 1);
  const RecordFile file;
  record(one, jobs, file, 2);

  const Result result = replay(one, jobs, file);

  check_same(result);
  CHECK_EQ(result.counts.texts, n_tasks_of(jobs));
}

TEST("jobs in cells that slots share, with guesses, replay the same") {
  Case one;
  one.limits.shared_cells = 300;
  one.limits.drafted_rows = 8;
  const Jobs jobs = random_jobs(300, 3);
  const RecordFile file;
  record(one, jobs, file, 4);

  check_same(replay(one, jobs, file));
}

TEST("limits of time that end jobs replay the same") {
  Case one;
  one.limits.queue_s = 0.005;
  one.limits.stall_s = 0.001;
  one.set_up = [](ScriptedBackend& backend) {
    backend.before_decode = [](const ScriptedBackend&, const ScriptedBackend::Rows&) {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      return Status::ok();
    };
  };
  const Jobs jobs = random_jobs(300, 5);
  const RecordFile file;
  record(one, jobs, file, 6);

  check_same(replay(one, jobs, file));
}

TEST("a batch that fails is replayed to the same end") {
  Case one;
  one.set_up = [](ScriptedBackend& backend) {
    backend.before_decode = [](const ScriptedBackend& model, const ScriptedBackend::Rows& rows) {
      if (model.has(rows, 'C')) return Status(StatusCode::kInternal, "nobody likes C");
      return rows.size() > 40 ? Status(StatusCode::kNoRoom, "too many") : Status::ok();
    };
  };
  const Jobs jobs = random_jobs(300, 7);
  const RecordFile file;
  record(one, jobs, file, 8);

  check_same(replay(one, jobs, file));
}

TEST("a recording that went round replays from its oldest whole segment to its end") {
  Case one;
  one.bytes = ring_file::kLeastSize;
  const Jobs jobs = random_jobs(12'000, 9);
  const RecordFile file;
  record(one, jobs, file, 10, 4);
  CHECK(file.size() <= one.bytes);

  const Result result = replay(one, jobs, file);

  check_same(result);
  CHECK(result.counts.texts > 500);
  CHECK(result.counts.texts < n_tasks_of(jobs));
}

TEST("a difference of one token is noticed, with its step") {
  const Case one;
  Jobs jobs = random_jobs(200, 11);
  for (size_t i = 50; i < 150; ++i) jobs[i][0] = make_task('Z', 10, 5);
  const RecordFile file;
  record(one, jobs, file, 12);
  for (size_t i = 50; i < 150; ++i) jobs[i][0].prompt[5] = 'q';

  const Result result = replay(one, jobs, file);

  CHECK(result.counts.steps_differ > 0);
  CHECK(result.lines.find("batch differs") != std::string::npos);
  CHECK(result.lines.substr(0, 5) == "step ");
}

TEST("a text that differs is noticed though no batch does") {
  Case one;
  const Jobs jobs = random_jobs(50, 13);
  const RecordFile file;
  record(one, jobs, file, 14);
  Jobs others = jobs;
  for (auto& job : others) {
    for (Task& task : job) task.id = 0;
  }
  one.set_up = [](ScriptedBackend& backend) {
    backend.spoil = [](Token, int32_t, float* logits, size_t size) {
      std::fill(logits, logits + size, 0.0f);
      logits['x'] = 9;
    };
  };

  const Result result = replay(one, others, file);

  CHECK(result.counts.texts_differ > 0);
  CHECK(result.lines.find("differs: the recording has") != std::string::npos);
}

TEST("a recording that ends anywhere is replayed up to there") {
  const Case one;
  const Jobs jobs = random_jobs(60, 15);
  const RecordFile file;
  record(one, jobs, file, 16);
  const uint64_t whole = file.size();
  const uint64_t n_steps = replay(one, jobs, file).counts.steps;
  uint64_t last = n_steps;

  for (uint64_t size = whole; size > ring_file::kFramesAt; size -= std::min<uint64_t>(size, 1 + size % 701)) {
    REQUIRE(::ftruncate(file.fd(), static_cast<off_t>(size)) == 0);
    const Result result = replay(one, jobs, file);
    CHECK_EQ(result.counts.steps_differ, uint64_t{0});
    CHECK_EQ(result.counts.texts_differ, uint64_t{0});
    CHECK(result.counts.steps <= last);
    last = result.counts.steps;
  }
  CHECK(last < n_steps);
}

TEST("a replay ends at the step that was asked for") {
  const Case one;
  const Jobs jobs = random_jobs(60, 17);
  const RecordFile file;
  record(one, jobs, file, 18);
  Player::Options options;
  options.until = 7;
  options.tells_steps = options.tells_texts = true;

  const Result result = replay(one, jobs, file, options);

  CHECK_EQ(result.counts.steps, uint64_t{7});
  CHECK(result.lines.find("step 7: ") != std::string::npos);
  CHECK(result.lines.find("step 8: ") == std::string::npos);
  CHECK(result.lines.find("the last step that was asked for is over") != std::string::npos);
}

TEST("what is recorded while the disk is full is lost, and the jobs are served") {
  Case one;
  const Jobs jobs = random_jobs(50, 19);
  const RecordFile file;
  const auto inbox = std::make_shared<Inbox>(size_t{1000});
  ScriptedBackend backend(256);
  Recorder recorder(::open("/dev/full", O_RDWR), one.bytes);
  DecodeLoop loop(one.limits, *inbox, backend, &recorder);
  std::thread thread([&loop] { loop.run(); });
  auto reader = std::make_shared<Reader>(1 << 20, inbox);
  REQUIRE(inbox->submit({make_task('A', 3, 4)}, reader).is_ok());
  Client client{reader, 1, false};

  while (!client.read()) std::this_thread::yield();

  CHECK(recorder.trouble().find("No space left") != std::string::npos);
  inbox->close("the test is over");
  thread.join();
}

}  // namespace
}  // namespace corosrv
