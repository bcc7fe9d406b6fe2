// Counters and histograms that the decode loop keeps about itself.
#pragma once

#include "corosrv.h"
#include "model/types.h"

namespace corosrv {

// Adds one observation; the bounds are those of corosrv_histogram.
inline void observe(corosrv_histogram& histogram, double observed_s) {
  int bucket = 0;
  for (double bound = 0.001; observed_s > bound && bucket < COROSRV_HISTOGRAM_BUCKETS - 1; bound *= 2) ++bucket;
  ++histogram.buckets[bucket];
  histogram.sum += observed_s;
}

inline void count_finish(corosrv_stats& stats, Finish finish) {
  switch (finish) {
    case Finish::kStop:
      ++stats.tasks_stop;
      break;
    case Finish::kLength:
      ++stats.tasks_length;
      break;
    case Finish::kCancelled:
      ++stats.tasks_cancelled;
      break;
    case Finish::kError:
      ++stats.tasks_error;
      break;
    case Finish::kUnfinished:
      break;
  }
}

}  // namespace corosrv
