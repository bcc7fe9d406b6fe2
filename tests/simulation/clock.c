// Gives a process the clock of the simulation: the microseconds that stand in the file which SIMULATED_CLOCK names.
// Loaded by LD_PRELOAD. Time passes for the process only when the simulation writes another number.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

// The allocator asks for the time before any constructor has run, so the file is opened when it is wanted first.
static int64_t now(void) {
  static const volatile int64_t* clock = NULL;
  if (clock == NULL) {
    const char* path = getenv("SIMULATED_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void* mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *clock, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) _exit(99);
    close(fd);
    clock = mapped;
  }
  return *clock;
}

int gettimeofday(struct timeval* restrict time, void* restrict zone) {
  (void)zone;
  int64_t microseconds = now();
  time->tv_sec = microseconds / 1000000;
  time->tv_usec = microseconds % 1000000;
  return 0;
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  (void)clock;
  int64_t microseconds = now();
  time->tv_sec = microseconds / 1000000;
  time->tv_nsec = microseconds % 1000000 * 1000;
  return 0;
}

time_t time(time_t* result) {
  time_t seconds = now() / 1000000;
  if (result) *result = seconds;
  return seconds;
}
