// The world *loop*: minutes of the real decode loop, inbox and readers around a scripted model, in virtual time.
// Clients of several owners ask again and again, read slowly, stop reading, leave, have deadlines; some tasks fail, and
// memory is short at times. Then come calm minutes, in which everything has to end well. The seed gives every choice.
//
//   build/world SEED SEEDS MINUTES [UNTIL]
//
// Prints a line for each seed. A violation of what must hold prints the events before it, and ends the program with 1;
// so does the event UNTIL, a number or words of one, with 0.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fakes/client.h"
#include "fakes/scripted_backend.h"
#include "fakes/tasks.h"
#include "handover/inbox.h"
#include "loop/decode_loop.h"
#include "virtual_time.h"

namespace corosrv {
namespace {

constexpr int32_t kContext = 512;
constexpr double kCalmS = 600;        // at the end
constexpr double kAskingS = 60;       // of it, in which clients still ask
constexpr double kLongestS = 240;     // that a task takes when nobody asks
constexpr double kLongestReadS = 15;  // from a slot to the end of the prompt, on a fast machine
constexpr double kGoneS = 2;          // in which a job ends whose client is gone
constexpr double kSlackS = 8;         // in which an end is computed, told of and read
constexpr size_t kShownEvents = 200;

constexpr uint64_t kOwners = 6;
constexpr uint64_t kShifting = 5;  // the owner whose answers outgrow their context

// First tokens of prompts, which say what becomes of the task.
constexpr Token kFails = 1, kThrows = 2, kMakesNoNumbers = 3, kOrdinary = 's';

// What a task is told when it has the model for itself. Takes no virtual time.
Answer answer_alone(Task task) {
  VirtualTime time;
  const auto inbox = std::make_shared<Inbox>(1);
  ScriptedBackend backend(kContext);
  DecodeLoop loop({1, 64, 60}, *inbox, backend);
  task.index = 0;
  task.slot = -1;
  task.deadline = Clock::time_point::max();
  task.max_ms = 0;
  task.tells_state = true;  // which ids it drew
  const auto reader = std::make_shared<Reader>(1 << 20, inbox);
  Client client(reader);
  std::vector<Task> tasks;
  tasks.push_back(std::move(task));
  if (!inbox->submit(std::move(tasks), reader).is_ok()) return {};
  time.on_wait = [&] { inbox->close("nothing is left to do"); };
  loop.run();
  client.take();
  return client.answer();
}

size_t common_length(const std::vector<Token>& a, const std::vector<Token>& b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(end.first - a.begin());
}

// What clients ask for at once, and what has come of it.
struct Job {
  size_t asker;
  std::vector<Task> tasks;
  std::vector<Answer> alone;  // of each task; without text for those that fail
  std::unique_ptr<Client> client;
  double submitted_s = 0;
  double deadline_s = std::numeric_limits<double>::infinity();
  double read_delay_s = 0;    // from a signal to the read
  double stalls_from_s = 0;   // reads nothing from then on
  double stalls_until_s = 0;  // up to then
  double cancelled_s = 0;     // 0: it was not
  double unread_since_s = 0;  // 0: nothing is unread
  bool is_read_due = false;
  bool has_chunks = false;  // some were read
  std::set<size_t> ended;   // tasks

  Token fate() const { return tasks[0].prompt[0]; }
  const SharingScope& scope() const { return tasks[0].sharing_scope; }
};

class World {
 public:
  World(uint64_t seed, double minutes, std::string until)
      : seed_(seed),
        minutes_(minutes),
        until_(std::move(until)),
        random_(seed),
        limits_(draw_limits()),
        inbox_(std::make_shared<Inbox>(static_cast<size_t>(limits_.slots) + 8 + below(24),
                                       has_chance(0.5) ? 12 : Inbox::kNoLimit)),
        backend_(kContext),
        draft_(kContext),
        loop_(limits_, *inbox_, backend_, nullptr, limits_.drafted_rows > 0 && has_chance(0.5) ? &draft_ : nullptr) {
    backend_.keeps_batches = draft_.keeps_batches = false;
    backend_.can_save = has_chance(0.9);
    backend_.shared_cells = static_cast<size_t>(limits_.shared_cells);
    backend_.before_decode = [this](const ScriptedBackend&, const ScriptedBackend::Rows& rows) { return step(rows); };
    backend_.spoil = [](Token name, int32_t, float* logits, size_t size) {
      if (name == kMakesNoNumbers) std::fill_n(logits, size, std::numeric_limits<float>::quiet_NaN());
    };
    draft_.before_decode = [this](const ScriptedBackend&, const ScriptedBackend::Rows&) { return guess(); };
    time_.on_wait = [this] { look(true); };
  }

  void run() {
    note(std::to_string(limits_.slots) + " slots, " + std::to_string(limits_.rows) + " rows, " +
         std::to_string(limits_.shared_cells) + " shared cells, " + std::to_string(limits_.cache_bytes) +
         " B of cache, " + std::to_string(limits_.queue_s) + " s in the queue, " + std::to_string(limits_.stall_s) +
         " s unread" + (backend_.can_save ? "" : ", no snapshots"));
    calm_from_s_ = now_s() + 60 * minutes_;
    const size_t n_askers = 1 + below(has_chance(0.3) ? 3 : 27);
    for (size_t asker = 0; asker < n_askers; ++asker) ask_later(asker, uniform(0, 5));
    time_.after(uniform(5, 30), [this] { lose_memory(); });
    time_.after(uniform(2, 20), [this] { request_slot(); });
    time_.after(60 * minutes_ + kCalmS, [this] { inbox_->close("the world ends"); });
    loop_.run();
    check_end();
    print("ok");
  }

 private:
  // Choices.

  uint64_t below(uint64_t n) { return random_() % n; }
  double uniform(double from, double to) {
    return from + (to - from) * static_cast<double>(random_() >> 11) / static_cast<double>(1ull << 53);
  }
  bool has_chance(double chance) { return uniform(0, 1) < chance; }
  bool has_fault(double chance) { return has_chance(chance) && now_s() < calm_from_s_; }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }

  DecodeLoop::Limits draw_limits() {
    DecodeLoop::Limits limits{static_cast<int32_t>(1 + below(6)), one_of<int32_t>({32, 64, 256}), uniform(30, 80)};
    limits.cache_bytes = one_of<size_t>({0, 2048, 20000, 1 << 20});
    limits.queue_s = one_of({0.0, 20.0});
    limits.stall_s = one_of({0.0, 15.0});
    limits.shared_cells = one_of<int32_t>({0, 0, kContext, 2 * kContext});
    limits.drafted_rows = one_of<int32_t>({0, 16});
    return limits;
  }

  // The tasks of one owner begin alike, so that they share prefixes; those of all begin alike, so that it would show if
  // they shared across owners.
  Task draw_task(size_t asker) {
    const uint64_t owner = asker % kOwners;
    Task task = make_task(kOrdinary, 1, static_cast<int32_t>(1 + below(has_chance(0.2) ? 300 : 40)));
    if (has_fault(0.05)) task.prompt[0] = one_of({kFails, kThrows, kMakesNoNumbers});
    task.prompt.insert(task.prompt.end(), below(60), 's');
    task.prompt.insert(task.prompt.end(), below(60), static_cast<Token>('A' + owner));
    for (uint64_t n = below(has_chance(0.2) ? 300 : 40); n > 0; --n)
      task.prompt.push_back('0' + static_cast<Token>(below(10)));
    task.sharing_scope.owner = owner;
    if (has_chance(0.2)) task.sharing_scope.adapters = {0.5f};
    if (owner == kShifting) {
      task.shift = ContextShift{static_cast<int32_t>(below(50)), 0};
      task.max_tokens += static_cast<int32_t>(below(600));
    } else if (has_chance(0.1)) {
      task.prompt[0] = kOrdinary;
      task.vectors = VectorWish{Pooling::kMean, ScriptedBackend::kVectorSize, -1};
      return task;
    }
    if (has_chance(0.5)) {
      task.sampling = Sampling();
      task.sampling.seed = static_cast<uint32_t>(below(1000));
      task.sampling.repeat_penalty = one_of({1.0f, 1.3f});
    }
    if (has_chance(0.3))
      task.stops = {std::string(1, static_cast<char>('a' + below(26))) + static_cast<char>('a' + below(26)), "e"};
    task.share_prefix = has_chance(0.9);
    task.tells_progress = has_chance(0.3);
    task.tells_state = has_chance(0.3);
    task.priority = static_cast<int32_t>(1 + below(9));
    task.tier = static_cast<int32_t>(owner % 3);
    task.weight = static_cast<double>(1 + owner);
    if (has_chance(0.1)) task.slot = static_cast<int32_t>(below(static_cast<uint64_t>(limits_.slots)));
    if (has_chance(0.1)) task.max_ms = uniform(100, 3000);
    if (has_fault(0.15)) task.deadline = time_.now() + std::chrono::milliseconds(1 + below(30000));
    return task;
  }

  // Clients.

  void ask_later(size_t asker, double delay_s) {
    if (now_s() + delay_s < calm_from_s_ + kAskingS) time_.after(delay_s, [this, asker] { ask(asker); });
  }

  void ask(size_t asker) {
    auto job = std::make_unique<Job>();
    job->asker = asker;
    const Task task = draw_task(asker);
    if (task.deadline != Clock::time_point::max()) job->deadline_s = seconds(task.deadline.time_since_epoch());
    for (uint64_t n = has_chance(0.8) ? 1 : 1 + below(4); n > 0; --n) {
      job->tasks.push_back(task);
      job->tasks.back().sampling.seed += static_cast<uint32_t>(n);
      job->alone.push_back(task.prompt[0] == kOrdinary ? answer_alone(job->tasks.back()) : Answer());
      if (has_chance(0.3)) predict(job->tasks.back(), job->alone.back().text);
      job->tasks.back().index = static_cast<int32_t>(job->alone.size() - 1);
    }
    for (Task& one : job->tasks) one.id = static_cast<int64_t>(n_jobs_);
    job->read_delay_s = has_chance(0.8) ? uniform(0, 0.02) : uniform(0.1, 2);
    if (has_fault(0.2)) {
      job->stalls_from_s = now_s() + uniform(0, 5);
      job->stalls_until_s = job->stalls_from_s + uniform(1, 60);
    }
    submit(std::move(job));
  }

  // Most of it comes true, as far as the answer says so.
  void predict(Task& task, const std::string& text) {
    for (const char letter : text) task.prediction.push_back(has_chance(0.9) ? static_cast<uint8_t>(letter) : 'x');
  }

  void submit(std::unique_ptr<Job> job) {
    const auto reader = std::make_shared<Reader>(one_of<size_t>({8, 64, 1 << 16}), inbox_);
    const Status status = inbox_->submit(job->tasks, reader);
    const size_t asker = job->asker;
    if (!status.is_ok()) {
      const double wait_s = inbox_->retry_after(job->tasks.size(), job->scope().owner);
      if (status.code() != StatusCode::kQueueFull || !(wait_s >= 0 && wait_s < 3600)) {
        violate("refused for " + status.message() + ", to try again after " + std::to_string(wait_s));
      }
      end("refused");
      return ask_later(asker, std::max(wait_s, 0.1));
    }
    job->client = std::make_unique<Client>(reader, job->tasks.size());
    job->submitted_s = now_s();
    for (size_t i = 0; i < job->tasks.size(); ++i) {
      std::vector<Token> tokens = job->tasks[i].prompt;
      tokens.insert(tokens.end(), job->alone[i].ids.begin(), job->alone[i].ids.end());
      known_.push_back({job->scope(), n_jobs_, std::move(tokens)});
    }
    const uint64_t id = n_jobs_++;
    note("job " + std::to_string(id) + " of " + std::to_string(job->scope().owner) + ": " +
         std::to_string(job->tasks.size()) + " of " + std::to_string(job->tasks[0].prompt.size()) + " tokens, slot " +
         std::to_string(job->tasks[0].slot) + ", fate " + std::to_string(job->fate()));
    jobs_[id] = std::move(job);
    const bool is_patient = jobs_[id]->stalls_until_s == 0;
    if (has_fault(is_patient ? 0.1 : 0.5)) time_.after(uniform(0, is_patient ? 3 : 20), [this, id] { cancel(id); });
  }

  void cancel(uint64_t id) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    Job& job = *found->second;
    job.cancelled_s = now_s();
    job.stalls_until_s = 0;
    // Some read what is left, others are gone: their jobs end all the same.
    job.is_read_due = has_chance(0.5);
    if (job.is_read_due) time_.after(kGoneS, [this, id] { read(id); });
    note("job " + std::to_string(id) + (job.is_read_due ? " is cancelled, and read no more" : " is cancelled"));
    job.client->reader().cancel();
  }

  // After each step, and whenever the loop sleeps: whoever is told that there is something to read reads it, later.
  void look(bool is_asleep) {
    for (const auto& [id, job] : jobs_) {
      const bool has_news = is_readable(job->client->reader().fd(), 0);
      if (has_news && job->unread_since_s == 0) job->unread_since_s = now_s();
      if (has_news && !std::exchange(job->is_read_due, true)) plan_read(id, *job);
      if (is_asleep && !has_news) look_at_silent(id, *job);
      check_times(id, *job);
    }
  }

  void plan_read(uint64_t id, const Job& job) {
    double delay_s = now_s() < calm_from_s_ ? job.read_delay_s : 0.01;
    if (now_s() >= job.stalls_from_s && now_s() < job.stalls_until_s) delay_s += job.stalls_until_s - now_s();
    time_.after(delay_s, [this, id = id] { read(id); });
  }

  void look_at_silent(uint64_t id, const Job& job) {
    const std::string name = name_of(id);
    if (job.client->reader().has_chunks()) violate(name + " is not told of what it may read, and the loop sleeps");
    if (!job.client->is_over()) violate(name + " has read all there is and is not over, and the loop sleeps");
  }

  void check_times(uint64_t id, const Job& job) {
    const double now = now_s(), slack_s = kSlackS + job.read_delay_s;
    const std::string name = name_of(id);
    const bool is_stalled = now < job.stalls_until_s + slack_s;
    // Those of other tiers lose their slots to these, and wait again.
    const bool is_silent = job.tasks[0].tier == 0 && !job.has_chunks && !job.client->reader().has_chunks();
    if (limits_.queue_s > 0 && is_silent && now > job.submitted_s + limits_.queue_s + slowness_ * kLongestReadS) {
      violate(name + " waits longer than it may");
    }
    if (now > job.deadline_s + slack_s && !is_stalled && job.cancelled_s == 0)
      violate(name + " does not end at its deadline");
    if (now > calm_from_s_ + kAskingS + kLongestS) violate(name + " does not end in calm time");
  }

  void read(uint64_t id) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    Job& job = *found->second;
    const double unread_since_s = std::exchange(job.unread_since_s, 0);
    job.is_read_due = false;
    job.client->take();
    job.has_chunks = true;
    for (size_t i = 0; i < job.tasks.size(); ++i) check_answer(id, job, i, unread_since_s);
    if (!job.client->is_over()) {
      if (job.cancelled_s > 0 && now_s() >= job.cancelled_s + kGoneS)
        violate(name_of(id) + " was cancelled and does not end");
      return;
    }
    const size_t asker = job.asker;
    jobs_.erase(found);
    ask_later(asker, has_chance(0.7) ? uniform(0, 0.5) : uniform(0, 20));
  }

  // The first violation ends the run.
  void check_answer(uint64_t id, Job& job, size_t i, double unread_since_s) {
    const Answer& answer = job.client->answer(i);
    const Answer& alone = job.alone[i];
    const std::string name = "task " + std::to_string(i) + " of job " + std::to_string(id);
    if (answer.n_late > 0 || answer.n_terminal > 1) violate(name + " hears something behind its end");
    if (answer.text != alone.text.substr(0, answer.text.size())) {
      violate(name + " is told " + answer.text + ", and " + alone.text + " when it is alone");
    }
    if (answer.n_terminal == 0 || !job.ended.insert(i).second) return;
    const double waited_s = now_s() - job.submitted_s;
    std::string outcome = answer.code;
    if (answer.finish == Finish::kCancelled) {
      outcome = "cancelled";
      if (job.cancelled_s == 0) violate(name + " was cancelled by nobody");
    } else if (answer.finish != Finish::kError) {
      outcome = answer.finish == Finish::kStop ? "stop" : "length";
      check_whole(name, id, job, i);
    } else if (outcome == kQueueTimeout) {
      const bool is_late = limits_.queue_s > 0 && waited_s >= limits_.queue_s;
      if (!is_late && now_s() < job.deadline_s)
        violate(name + " has waited too long after " + std::to_string(waited_s));
    } else if (outcome == kClientTooSlow) {
      const double unread_s = now_s() - unread_since_s;
      if (limits_.stall_s == 0 || unread_s < limits_.stall_s - 1)
        violate(name + " has left nothing unread for so long");
    } else if (outcome == kDeadlineExceeded) {
      if (now_s() < job.deadline_s) violate(name + " ends before its deadline");
    } else {
      outcome = "failed";
      if (job.fate() == kOrdinary) violate(name + " fails for others: " + answer.message);
    }
    note(name + ": " + outcome + ", " + std::to_string(answer.n_tokens) + " tokens, " +
         std::to_string(answer.cached_tokens) + " cached, " + std::to_string(answer.accepted_tokens) + " guessed");
    end(outcome);
  }

  void check_whole(const std::string& name, uint64_t id, const Job& job, size_t i) {
    const Task& task = job.tasks[i];
    const Answer& answer = job.client->answer(i);
    const Answer& alone = job.alone[i];
    if (job.fate() != kOrdinary) violate(name + " ends well, and should fail");
    if (task.max_ms == 0 && (answer.text != alone.text || answer.finish != alone.finish)) {
      violate(name + " ends with " + answer.text + ", and with " + alone.text + " when it is alone");
    }
    if (answer.vector != alone.vector) violate(name + " gets another vector than alone");
    if (answer.prompt_tokens != static_cast<int32_t>(task.prompt.size()))
      violate(name + " has lost tokens of its prompt");
    if (job.scope().owner == kShifting) return;  // what is left behind of its answers has gaps
    size_t n_known = 0;
    for (const auto& [scope, other, tokens] : known_) {
      const bool is_own = other == id && job.tasks.size() == 1;
      if (scope == job.scope() && !is_own) n_known = std::max(n_known, common_length(task.prompt, tokens));
    }
    if (!task.share_prefix) n_known = 0;
    if (static_cast<size_t>(answer.cached_tokens) > n_known) violate(name + " was given what others have asked");
  }

  static std::string name_of(uint64_t id) { return "job " + std::to_string(id); }

  // The machine.

  // Time that passes while the model computes, in which clients do what they do.
  Status step(const ScriptedBackend::Rows& rows) {
    ++n_batches_;
    if (static_cast<int32_t>(rows.size()) > limits_.rows)
      violate("a batch has " + std::to_string(rows.size()) + " rows");
    std::set<int32_t> slots;
    for (const Row& row : rows) slots.insert(row.slot);
    used_slots_.insert(slots.begin(), slots.end());
    look(false);
    time_.pass(slowness_ * (0.002 + 0.0005 * static_cast<double>(rows.size())) +
               (has_fault(0.001) ? uniform(0, 1.5) : 0));
    look(false);
    if (slots.size() > 1 && now_s() < short_until_s_ && has_chance(0.5)) return Status(StatusCode::kNoRoom, "full");
    if (backend_.has(rows, kFails)) return Status(StatusCode::kInternal, "it fails");
    if (backend_.has(rows, kThrows)) throw std::runtime_error("it throws");
    return Status::ok();
  }

  Status guess() {
    time_.pass(slowness_ * 0.0003);
    if (draft_has_failed_) violate("a draft model that has failed is asked again");
    draft_has_failed_ = has_fault(0.001);
    return draft_has_failed_ ? Status(StatusCode::kInternal, "it fails") : Status::ok();
  }

  void lose_memory() {
    if (now_s() >= calm_from_s_) return;
    short_until_s_ = now_s() + uniform(0, 3);
    time_.after(uniform(5, 60), [this] { lose_memory(); });
  }

  // Copies a slot for an owner, and puts what was copied earlier into some slot, or forgets what one holds.
  void request_slot() {
    if (now_s() >= calm_from_s_) return;
    const auto slot = static_cast<int32_t>(below(static_cast<uint64_t>(limits_.slots)));
    const uint64_t owner = below(kOwners);
    for (const auto& earlier : slot_requests_) {
      if (earlier->is_answered() && !earlier->is_abandoned()) check_saved(*earlier);
    }
    auto action = one_of({SlotRequest::Action::kSave, SlotRequest::Action::kSave, SlotRequest::Action::kErase});
    SlotContent content;
    uint64_t owner_of_content = owner;
    if (has_chance(0.4) && !slot_requests_.empty()) {
      const auto& earlier = slot_requests_[below(slot_requests_.size())];
      if (earlier->is_answered() && earlier->status().is_ok() && earlier->action() == SlotRequest::Action::kSave) {
        action = SlotRequest::Action::kRestore;
        content = static_cast<const SlotRequest&>(*earlier).content();
        owner_of_content = earlier->owner();
      }
    }
    slot_requests_.push_back(std::make_shared<SlotRequest>(action, slot, owner_of_content, std::move(content)));
    note("slot request " + std::to_string(static_cast<int>(action)) + " for slot " + std::to_string(slot));
    if (!inbox_->request_slot(slot_requests_.back()).is_ok()) violate("a slot request is refused");
    if (has_chance(0.2)) slot_requests_.back()->abandon();
    time_.after(uniform(2, 20), [this] { request_slot(); });
  }

  void check_saved(const SlotRequest& request) {
    const SlotContent& content = request.content();
    if (request.action() != SlotRequest::Action::kSave || !request.status().is_ok() || content.tokens.empty()) return;
    if (request.owner() == kShifting) return;
    const SharingScope scope{request.owner(), content.adapters};
    for (const auto& [other, id, tokens] : known_) {
      if (scope == other && common_length(content.tokens, tokens) == content.tokens.size()) return;
    }
    violate("a copy of slot " + std::to_string(request.slot()) + " holds what its owner did not ask");
  }

  // Ends.

  void check_end() {
    if (!jobs_.empty()) violate("job " + std::to_string(jobs_.begin()->first) + " is not over at the end");
    for (const ScriptedBackend* backend : {&backend_, &draft_}) {
      if (!backend->faults().empty()) violate(backend->faults().front());
    }
    const LoopStats stats = loop_.snapshot();
    if (inbox_->in_flight() > 0 || stats.running + stats.waiting + stats.paused > 0)
      violate("tasks are left at the end");
    if (stats.readers > 0) violate("readers are left at the end");
    if (stats.cache_bytes > limits_.cache_bytes) violate("the prefix cache holds more than it may");
    const std::vector<int32_t> given_back = backend_.given_back();
    for (const int32_t slot : used_slots_) {
      if (std::count(given_back.begin(), given_back.end(), slot) == 0) violate("an idle slot keeps its memory");
    }
    for (const auto& request : slot_requests_) {
      if (!request->is_answered() && !request->is_abandoned()) violate("a slot request is not answered");
    }
  }

  void end(const std::string& outcome) { ++outcomes_[outcome]; }

  void note(const std::string& words) {
    char place[48];
    std::snprintf(place, sizeof place, "%7zu %11.4f  ", ++n_events_, now_s() - begin_s_);
    events_.push_back(place + words);
    if (events_.size() > kShownEvents) events_.pop_front();
    for (const char letter : events_.back()) digest_ = (digest_ ^ static_cast<uint8_t>(letter)) * 1099511628211ull;
    if (until_.empty() || (until_ != std::to_string(n_events_) && words.find(until_) == std::string::npos)) return;
    print("ok");
    print_events();
    std::_Exit(0);
  }

  // The loop would take an exception for the model's failure.
  [[noreturn]] void violate(const std::string& words) {
    print("VIOLATED");
    print_events();
    print_open();
    std::printf("VIOLATION: loop %llu: %s\n", static_cast<unsigned long long>(seed_), words.c_str());
    std::fflush(stdout);
    std::_Exit(1);
  }

  void print(const char* verdict) const {
    std::printf("loop %llu: %s, %.1f min in %.2f s, %zu events, %zu batches, digest %016llx, {",
                static_cast<unsigned long long>(seed_), verdict, (now_s() - begin_s_) / 60,
                static_cast<double>(std::clock() - began_) / CLOCKS_PER_SEC, n_events_, n_batches_,
                static_cast<unsigned long long>(digest_));
    const char* comma = "";
    for (const auto& [outcome, count] : outcomes_)
      std::printf("%s'%s': %d", std::exchange(comma, ", "), outcome.c_str(), count);
    std::printf("}\n");
    std::fflush(stdout);
  }

  // The jobs that are not over.
  void print_open() {
    const LoopStats stats = loop_.snapshot();
    std::printf("%d running, %d waiting, %d paused\n", stats.running, stats.waiting, stats.paused);
    for (const SlotStatus& slot : loop_.slots()) {
      std::printf("slot of job %lld: %s, %d of %d tokens, %d generated\n", static_cast<long long>(slot.task),
                  slot.is_busy ? "busy" : "idle", slot.computed_tokens + slot.cached_tokens, slot.prompt_tokens,
                  slot.generated_tokens);
    }
    for (const auto& [id, job] : jobs_) {
      std::printf("job %llu, %.1f s old, %s unread:", static_cast<unsigned long long>(id), now_s() - job->submitted_s,
                  job->client->reader().has_chunks() ? "something" : "nothing");
      for (size_t i = 0; i < job->tasks.size(); ++i) {
        const Answer& answer = job->client->answer(i);
        std::printf(" %d of %zu tokens%s", answer.n_tokens, job->alone[i].text.size(),
                    answer.n_terminal > 0 ? " (over)" : "");
      }
      std::printf("\n");
    }
  }

  void print_events() const {
    for (const std::string& event : events_) std::printf("%s\n", event.c_str());
    std::fflush(stdout);
  }

  double now_s() const { return seconds(time_.now().time_since_epoch()); }

  // What somebody has asked, and would be told, as far as others may share it.
  struct Known {
    SharingScope scope;
    uint64_t job;
    std::vector<Token> tokens;
  };

  const uint64_t seed_;
  const double minutes_;
  const std::string until_;
  const std::clock_t began_ = std::clock();
  VirtualTime time_;
  const double begin_s_ = now_s();
  std::mt19937_64 random_;
  const DecodeLoop::Limits limits_;
  const std::shared_ptr<Inbox> inbox_;
  ScriptedBackend backend_;
  ScriptedBackend draft_;  // a second model, which guesses what the first one says
  DecodeLoop loop_;

  const double slowness_ = one_of({1.0, 1.0, 5.0});  // of the machine
  bool draft_has_failed_ = false;
  double calm_from_s_ = 0;
  double short_until_s_ = 0;  // of memory
  uint64_t n_jobs_ = 0;
  std::map<uint64_t, std::unique_ptr<Job>> jobs_;  // that are not over
  std::vector<Known> known_;
  std::vector<std::shared_ptr<SlotRequest>> slot_requests_;
  std::set<int32_t> used_slots_;

  size_t n_events_ = 0;
  size_t n_batches_ = 0;
  uint64_t digest_ = 14695981039346656037ull;
  std::deque<std::string> events_;  // the last ones
  std::map<std::string, int> outcomes_;
};

}  // namespace
}  // namespace corosrv

int main(int n_arguments, char** arguments) {
  if (n_arguments < 4) return 2;
  const uint64_t first = std::strtoull(arguments[1], nullptr, 10);
  const uint64_t n_seeds = std::strtoull(arguments[2], nullptr, 10);
  for (uint64_t seed = first; seed < first + n_seeds; ++seed) {
    corosrv::World(seed, std::atof(arguments[3]), n_arguments > 4 ? arguments[4] : "").run();
  }
  return 0;
}
