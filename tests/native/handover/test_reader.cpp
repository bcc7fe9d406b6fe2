#include <sys/epoll.h>
#include <sys/resource.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "check.h"
#include "fakes/client.h"
#include "fakes/waiting.h"
#include "foreign.h"
#include "handover/reader.h"

namespace {

// What this thread does right after its next write(), before write() returns.
thread_local std::function<void()> after_write;

}  // namespace

// The linker puts this in the place of write() (--wrap=write in the Makefile).
extern "C" ssize_t __real_write(int fd, const void* data, size_t size);
extern "C" ssize_t __wrap_write(int fd, const void* data, size_t size) {
  const ssize_t written = __real_write(fd, data, size);
  if (after_write) std::exchange(after_write, {})();
  return written;
}

namespace corosrv {
namespace {

Chunk make_chunk(int32_t index, const std::string& text, Finish finish = Finish::kUnfinished) {
  Chunk chunk;
  chunk.index = index;
  chunk.n_tokens = 1;
  chunk.finish = finish;
  chunk.text = text;
  return chunk;
}

std::vector<Chunk> take(Reader& reader) {
  std::vector<Chunk> taken(1);  // is emptied first
  reader.take(taken);
  return taken;
}

TEST("a new reader is not readable and has nothing") {
  const auto reader = make_reader();

  CHECK(reader->is_open());
  CHECK(!is_readable(reader->fd(), 0));
  CHECK(take(*reader).empty());
}

TEST("a reader is readable from the push to the take") {
  const auto reader = make_reader();

  reader->push(make_chunk(0, "a"));
  CHECK(is_readable(reader->fd(), 0));
  CHECK_EQ(take(*reader).size(), size_t{1});
  CHECK(!is_readable(reader->fd(), 0));
}

// A reader that the process had no descriptor for.
std::shared_ptr<Reader> make_reader_without_descriptor() {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  auto reader = make_reader();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  return reader;
}

TEST("a reader without a descriptor has chunks from the push to the take, and asks for no signal") {
  const auto reader = make_reader_without_descriptor();
  REQUIRE(!reader->is_open());
  CHECK(!reader->has_chunks());

  CHECK(!reader->push(make_chunk(0, "a")));
  CHECK(!reader->push(make_chunk(0, "b", Finish::kStop)));
  reader->signal();

  CHECK(reader->has_chunks());
  const auto taken = take(*reader);
  REQUIRE(taken.size() == 1);
  CHECK_EQ(taken[0].text, std::string("ab"));
  CHECK(!reader->has_chunks());
}

TEST("a take leaves the reader unreadable, chunks or none") {
  const auto reader = make_reader();
  reader->push(make_chunk(0, "a"));
  take(*reader);
  const uint64_t one = 1;  // as a signal does that comes after its chunk was taken
  REQUIRE(::write(reader->fd(), &one, sizeof one) == sizeof one);

  CHECK(take(*reader).empty());
  CHECK(!is_readable(reader->fd(), 0));
}

TEST("a take that clears nothing leaves an edge for the next chunk, and one for each signal") {
  const auto reader = make_reader();
  const int edges = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  REQUIRE(::epoll_ctl(edges, EPOLL_CTL_ADD, reader->fd(), &event) == 0);
  std::vector<Chunk> taken;

  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(::epoll_wait(edges, &event, 1, 0), 0);
    reader->push(make_chunk(0, "a"));
    CHECK_EQ(::epoll_wait(edges, &event, 1, 0), 1);
    reader->take(taken, false);
    CHECK_EQ(taken.size(), size_t{1});
    CHECK(is_readable(reader->fd(), 0));
  }
  ::close(edges);
}

// One thread pushes while another takes whatever an edge tells it of: a chunk that is pushed between a take and the
// wait after it has to be an edge, or this hangs.
TEST("no chunk is lost between a take and a wait for edges (I1)") {
  constexpr int kChunks = 200000;
  const auto reader = make_reader();
  const int edges = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  REQUIRE(::epoll_ctl(edges, EPOLL_CTL_ADD, reader->fd(), &event) == 0);
  std::thread pushing([&reader] {
    for (int i = 0; i < kChunks; ++i) reader->push(make_chunk(0, "x"));
  });

  int n_tokens = 0;
  std::vector<Chunk> taken;
  while (n_tokens < kChunks && ::epoll_wait(edges, &event, 1, 5000) == 1) {
    reader->take(taken, false);
    for (const Chunk& chunk : taken) n_tokens += chunk.n_tokens;
  }

  pushing.join();
  ::close(edges);
  CHECK_EQ(n_tokens, kChunks);
}

TEST("unread chunks of one task leave as one, with their tokens added up") {
  const auto reader = make_reader();
  reader->push(make_chunk(0, "one"));
  reader->push(make_chunk(1, "other"));
  reader->push(make_chunk(0, " two"));
  reader->push(make_chunk(0, " three", Finish::kStop));

  const std::vector<Chunk> taken = take(*reader);

  REQUIRE(taken.size() == 2);
  CHECK_EQ(taken[0].text, "one two three");
  CHECK_EQ(taken[0].n_tokens, 3);
  CHECK_EQ(taken[0].finish, Finish::kStop);
  CHECK_EQ(taken[1].text, "other");
  CHECK_EQ(taken[1].index, 1);
}

TEST("unread chunks of a task merge: their ids in order, and the newest state") {
  const auto reader = make_reader();
  for (const Token id : {7, 8}) {
    Chunk chunk = make_chunk(0, "a");
    chunk.ids = {id, id + 10};
    chunk.state.fill(static_cast<uint8_t>(id));
    reader->push(std::move(chunk));
  }
  reader->push(make_chunk(0, ""));  // tells of progress

  const std::vector<Chunk> taken = take(*reader);

  REQUIRE(taken.size() == 1);
  CHECK_EQ(taken[0].ids, (std::vector<Token>{7, 17, 8, 18}));
  CHECK_EQ(int{taken[0].state[0]}, 8);
}

TEST("an error's message is not merged into the answer's text") {
  const auto reader = make_reader();
  reader->push(make_chunk(0, "answer"));
  reader->push(make_chunk(0, "message", Finish::kError));

  const std::vector<Chunk> taken = take(*reader);

  REQUIRE(taken.size() == 2);
  CHECK_EQ(taken[0].text, "answer");
  CHECK_EQ(taken[1].text, "message");
}

TEST("the eventfd is written once for many pushes without a take (I3)") {
  const auto reader = make_reader();
  int writes = 0;
  for (int i = 0; i < 1000; ++i) writes += reader->push(make_chunk(i % 3, "x")) ? 1 : 0;

  uint64_t count = 0;
  REQUIRE(::read(reader->fd(), &count, sizeof count) == sizeof count);
  CHECK_EQ(count, uint64_t{1});
  CHECK_EQ(writes, 1);
  take(*reader);
  CHECK(reader->push(make_chunk(0, "x")));
}

TEST("a reader is full at its limit of unread bytes and not before") {
  const auto reader = make_reader(8);
  reader->push(make_chunk(0, "1234567"));
  CHECK(!reader->is_full());
  reader->push(make_chunk(1, "8"));
  CHECK(reader->is_full());
  take(*reader);
  CHECK(!reader->is_full());
}

TEST("a take is told to the listener when the reader was seen full, and only then") {
  const auto listener = std::make_shared<SilentListener>();
  Reader reader(4, listener);
  reader.push(make_chunk(0, "12345"));
  take(reader);
  CHECK_EQ(listener->n_rooms, 0);

  reader.push(make_chunk(0, "12345"));
  CHECK(reader.is_full());
  take(reader);
  take(reader);
  CHECK_EQ(listener->n_rooms, 1);
}

TEST("cancelling twice is told once") {
  const auto listener = std::make_shared<SilentListener>();
  Reader reader(4, listener);
  CHECK(!reader.is_cancelled());

  reader.cancel();
  reader.cancel();

  CHECK(reader.is_cancelled());
  CHECK_EQ(listener->n_cancels, 1);
}

TEST("readers alive are counted") {
  const int before = Reader::alive();
  auto reader = make_reader();
  CHECK_EQ(Reader::alive(), before + 1);

  reader.reset();
  CHECK_EQ(Reader::alive(), before);
}

TEST("a chunk is there in the moment in which its signal is (I1)") {
  const auto reader = make_reader();
  std::vector<Chunk> taken;
  after_write = [&] { taken = take(*reader); };

  CHECK(reader->push(make_chunk(0, "x")));

  REQUIRE(taken.size() == 1);
  CHECK_EQ(taken[0].text, "x");
  CHECK(!is_readable(reader->fd(), 0));
}

// The producer waits until a chunk is taken before it pushes the next, so no push can fall into a take: whoever was
// woken has to find the chunk. The consumer looks all the time rather than sleeping in poll(), so that it is there the
// moment the signal is. On a busy machine that is slow, so it ends after a second.
TEST("whoever was woken finds a chunk (I1)") {
  constexpr int kChunks = 20000;
  const auto reader = make_reader();
  const auto end = Clock::now() + std::chrono::seconds(1);
  std::atomic<int> n_taken{0};
  std::atomic<bool> is_over{false};
  std::thread producer([&] {
    for (int i = 0; i < kChunks && !is_over; ++i) {
      while (n_taken < i && !is_over) std::this_thread::yield();
      if (!is_over) reader->push(make_chunk(0, "x"));
    }
  });

  int n_idle = 0;
  for (int i = 0; i < kChunks && n_idle == 0 && Clock::now() < end; ++i) {
    while (!is_readable(reader->fd(), 0) && Clock::now() < end) {
    }
    if (!is_readable(reader->fd(), 0)) break;
    n_idle += take(*reader).empty() ? 1 : 0;
    ++n_taken;
  }
  is_over = true;
  producer.join();

  CHECK_EQ(n_idle, 0);
  CHECK(n_taken > 0);
}

TEST("nothing is lost between a producer and a consumer that run freely (I1)") {
  constexpr int32_t kChunks = 50000;
  const auto reader = make_reader();
  std::thread producer([&] {
    for (int32_t i = 0; i < kChunks; ++i) {
      reader->push(make_chunk(i % 2, "x", i + 2 < kChunks ? Finish::kUnfinished : Finish::kStop));
    }
  });
  Client client(reader, 2);

  CHECK(client.finish());
  producer.join();

  CHECK_EQ(client.text(0).size() + client.text(1).size(), size_t{kChunks});
  CHECK_EQ(client.answer(0).n_tokens + client.answer(1).n_tokens, kChunks);
  CHECK(take(*reader).empty());
  CHECK(!is_readable(reader->fd(), 0));
}

// One side lets go of a reader while the other writes to it for the last time.
TEST("a reader that both sides let go of at once writes to nobody else (I2)") {
  Foreigner foreigner;
  Foreigner another;
  for (int round = 0; round < 150; ++round) {
    std::vector<std::shared_ptr<Reader>> mine;
    for (int i = 0; i < 20; ++i) mine.push_back(make_reader());
    std::vector<std::shared_ptr<Reader>> theirs = mine;
    std::thread decoding([&theirs] {
      for (auto& reader : theirs) {
        reader->push(make_chunk(0, "last", Finish::kStop));
        reader.reset();
      }
    });
    for (auto& reader : mine) {
      take(*reader);
      reader.reset();
    }
    decoding.join();
  }
}

}  // namespace
}  // namespace corosrv
