#include "api/to_c.h"

#include <algorithm>

namespace corosrv {

namespace {

corosrv_finish to_c(Finish finish) {
  switch (finish) {
    case Finish::kUnfinished:
      return COROSRV_UNFINISHED;
    case Finish::kStop:
      return COROSRV_STOP;
    case Finish::kLength:
      return COROSRV_LENGTH;
    case Finish::kCancelled:
      return COROSRV_CANCELLED;
    case Finish::kError:
      return COROSRV_ERROR;
  }
  return COROSRV_ERROR;
}

corosrv_pooling to_c(Pooling pooling) {
  switch (pooling) {
    case Pooling::kNone:
      return COROSRV_POOLING_NONE;
    case Pooling::kMean:
      return COROSRV_POOLING_MEAN;
    case Pooling::kCls:
      return COROSRV_POOLING_CLS;
    case Pooling::kLast:
      return COROSRV_POOLING_LAST;
    case Pooling::kRank:
      return COROSRV_POOLING_RANK;
  }
  return COROSRV_POOLING_NONE;
}

corosrv_histogram to_c(const Histogram& from) {
  static_assert(std::tuple_size<decltype(from.buckets)>::value == COROSRV_HISTOGRAM_BUCKETS);
  corosrv_histogram histogram{};
  std::copy(from.buckets.begin(), from.buckets.end(), histogram.buckets);
  histogram.sum = from.sum;
  return histogram;
}

corosrv_likelihood to_c(const Likelihood& from) {
  corosrv_likelihood likelihood{};
  likelihood.token = from.token;
  likelihood.logprob = from.logprob;
  likelihood.n_top = from.n_top;
  likelihood.piece_size = from.piece_size;
  return likelihood;
}

}  // namespace

corosrv_code to_c(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return COROSRV_OK;
    case StatusCode::kInvalid:
      return COROSRV_INVALID;
    case StatusCode::kQueueFull:
      return COROSRV_QUEUE_FULL;
    case StatusCode::kNoDescriptor:
      return COROSRV_NO_DESCRIPTOR;
    case StatusCode::kNotReady:
      return COROSRV_NOT_READY;
    case StatusCode::kClosed:
      return COROSRV_CLOSED;
    case StatusCode::kForked:
      return COROSRV_FORKED;
    case StatusCode::kTooLong:
      return COROSRV_TOO_LONG;
    case StatusCode::kInternal:
      return COROSRV_INTERNAL;
    case StatusCode::kInvalidGrammar:
      return COROSRV_INVALID_GRAMMAR;
    case StatusCode::kNoRoom:
      return COROSRV_NO_ROOM;
    case StatusCode::kUnsupported:
      return COROSRV_UNSUPPORTED;
  }
  return COROSRV_INTERNAL;
}

corosrv_state to_c(EngineState state) {
  switch (state) {
    case EngineState::kStarting:
      return COROSRV_STARTING;
    case EngineState::kReady:
      return COROSRV_READY;
    case EngineState::kFailed:
      return COROSRV_FAILED;
    case EngineState::kStopped:
      return COROSRV_STOPPED;
  }
  return COROSRV_FAILED;
}

corosrv_stats to_c(const LoopStats& from) {
  corosrv_stats stats{};
  stats.tasks_stop = from.tasks_stop;
  stats.tasks_length = from.tasks_length;
  stats.tasks_cancelled = from.tasks_cancelled;
  stats.tasks_error = from.tasks_error;
  stats.tasks_refused = from.tasks_refused;
  stats.prompt_tokens = from.prompt_tokens;
  stats.cached_tokens = from.cached_tokens;
  stats.generated_tokens = from.generated_tokens;
  stats.drafts = from.drafts;
  stats.draft_tokens = from.draft_tokens;
  stats.draft_accepted_tokens = from.draft_accepted_tokens;
  stats.draft_model_tokens = from.draft_model_tokens;
  stats.draft_model_accepted_tokens = from.draft_model_accepted_tokens;
  stats.steps = from.steps;
  stats.eventfd_writes = from.eventfd_writes;
  stats.readers_polled = from.readers_polled;
  stats.preempted = from.preempted;
  stats.later_tokens = from.later_tokens;
  stats.slot_steps = from.slot_steps;
  stats.longest_task = from.longest_task;
  stats.step_s = from.step_s;
  stats.prompt_s = from.prompt_s;
  stats.decode_s = from.decode_s;
  stats.threads = from.threads;
  stats.slots = from.slots;
  stats.running = from.running;
  stats.waiting = from.waiting;
  stats.paused = from.paused;
  stats.readers = from.readers;
  stats.cache_entries = from.cache_entries;
  stats.cache_bytes = from.cache_bytes;
  stats.queue_wait = to_c(from.queue_wait);
  stats.ttft = to_c(from.ttft);
  stats.itl = to_c(from.itl);
  return stats;
}

corosrv_slot to_c(const SlotStatus& from) {
  corosrv_slot slot{};
  slot.task = from.task;
  slot.is_busy = from.is_busy;
  slot.prompt_tokens = from.prompt_tokens;
  slot.computed_tokens = from.computed_tokens;
  slot.cached_tokens = from.cached_tokens;
  slot.generated_tokens = from.generated_tokens;
  slot.has_new_line = from.has_new_line;
  return slot;
}

corosrv_model_info to_c(const ModelInfo& from, int32_t n_vocab) {
  corosrv_model_info info{};
  info.context = from.context;
  info.context_train = from.context_train;
  info.n_vocab = n_vocab;
  info.n_embd = from.n_embd;
  info.vocab_type = from.vocab_type;
  info.add_bos = from.add_bos;
  info.bos = from.bos;
  info.eos = from.eos;
  info.n_params = from.n_params;
  info.size = from.size;
  info.own_kernels = from.own_kernels;
  info.picks = from.picks;
  info.packed_bytes = from.packed_bytes;
  info.ftype = from.ftype.c_str();
  info.description = from.description.c_str();
  info.chat_template = from.chat_template.c_str();
  info.generates = from.can_generate;
  info.n_vector = from.n_vector;
  info.pooling = to_c(from.pooling);
  info.add_eos = from.add_eos;
  info.add_sep = from.add_sep;
  info.sep = from.sep;
  info.fim_prefix = from.fim_prefix;
  info.fim_suffix = from.fim_suffix;
  info.fim_middle = from.fim_middle;
  info.fim_repository = from.fim_repository;
  info.fim_file = from.fim_file;
  info.rerank_template = from.rerank_template.c_str();
  info.sampling = from.sampling.c_str();
  info.n_adapters = from.n_adapters;
  info.row_width = from.row_width;
  info.shared_cells = from.shared_cells;
  return info;
}

corosrv_slot_content to_c(const SlotContent& from) {
  corosrv_slot_content content{};
  content.tokens = from.tokens.data();
  content.n_tokens = from.tokens.size();
  content.adapter_scales = from.adapters.data();
  content.n_adapter_scales = from.adapters.size();
  if (from.snapshot == nullptr) return content;
  content.state = from.snapshot->bytes.get();
  content.state_size = from.snapshot->size;
  return content;
}

void ChunkArray::assign(const std::vector<Chunk>& from) {
  chunks_.clear();
  likelihoods_.clear();
  for (const Chunk& chunk : from) chunks_.push_back(convert(chunk));
}

corosrv_chunk ChunkArray::convert(const Chunk& from) {
  corosrv_chunk chunk{};
  chunk.index = from.index;
  chunk.n_tokens = from.n_tokens;
  chunk.finish = to_c(from.finish);
  chunk.prompt_tokens = from.prompt_tokens;
  chunk.cached_tokens = from.cached_tokens;
  chunk.drafted_tokens = from.drafted_tokens;
  chunk.accepted_tokens = from.accepted_tokens;
  chunk.read_tokens = from.read_tokens;
  chunk.prompt_ms = from.prompt_ms;
  chunk.decode_ms = from.decode_ms;
  chunk.compute_ms = from.compute_ms;
  chunk.text = from.text.data();
  chunk.text_size = from.text.size();
  chunk.vector = from.vector.data();
  chunk.n_vector = from.vector.size();
  chunk.stopping_word = {from.stopping_word.data(), from.stopping_word.size()};
  chunk.code = from.code;
  chunk.slot = from.slot;
  chunk.n_dropped = from.n_dropped;
  chunk.tokens = convert(from.tokens);
  chunk.prompt_info = convert(from.prompt_info);
  if (from.ids.empty()) return chunk;
  static_assert(std::tuple_size<SamplerState>::value == COROSRV_STATE_BYTES);
  chunk.ids = from.ids.data();
  chunk.n_ids = from.ids.size();
  chunk.state = from.state.data();
  chunk.n_state = from.state.size();
  return chunk;
}

corosrv_token_list ChunkArray::convert(const std::unique_ptr<TokenList>& from) {
  if (from == nullptr) return {};
  std::vector<corosrv_likelihood> entries;
  entries.reserve(from->entries().size());
  for (const Likelihood& entry : from->entries()) entries.push_back(to_c(entry));
  likelihoods_.push_back(std::move(entries));
  corosrv_token_list list{};
  list.entries = likelihoods_.back().data();  // stays where it is when the outer vector grows
  list.n_entries = likelihoods_.back().size();
  list.pieces = from->pieces().data();
  list.pieces_size = from->pieces().size();
  return list;
}

}  // namespace corosrv
