/* The types of the C API: codes and states, plain structs. Its handles and calls are in corosrv.h.
 *
 * The compiler reads this file as it stands, and so does cffi (native/build_native.py drops the lines that begin
 * with '#'): a declaration is typed once.
 *
 * Conventions
 * - Text is pointer and size in bytes, UTF-8, and may hold NUL. Times are seconds unless the name ends in _ms.
 * - What a struct points to has to live until the call returns; the engine copies what it keeps.
 */
#ifndef COROSRV_TYPES_H_
#define COROSRV_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum corosrv_code {
  COROSRV_OK = 0,
  COROSRV_INVALID = 1,         /* an argument is out of range; the message names it */
  COROSRV_QUEUE_FULL = 2,      /* as many jobs wait as may wait; nothing was taken */
  COROSRV_NO_DESCRIPTOR = 3,   /* the process has no file descriptor left for an eventfd */
  COROSRV_NOT_READY = 4,       /* the model is still loading, or failed to load */
  COROSRV_CLOSED = 5,          /* the engine is closing or closed */
  COROSRV_FORKED = 6,          /* the handle was made before a fork() */
  COROSRV_TOO_LONG = 7,        /* the prompt leaves no room in the context of a slot */
  COROSRV_INTERNAL = 8,        /* out of memory or a bug; the message has the words */
  COROSRV_INVALID_GRAMMAR = 9, /* a task's grammar cannot be used; the message says where and why */
  COROSRV_NO_ROOM = 10,        /* the KV cache is full; stays inside, where sequences then wait for each other */
  COROSRV_UNSUPPORTED = 11     /* this model cannot do what the task wants; the message says what it lacks */
} corosrv_code;

typedef enum corosrv_state {
  COROSRV_STARTING = 0,
  COROSRV_READY = 1,
  COROSRV_FAILED = 2,
  COROSRV_STOPPED = 3
} corosrv_state;

/* Why a task ended; anything but COROSRV_UNFINISHED marks the task's one terminal chunk. */
typedef enum corosrv_finish {
  COROSRV_UNFINISHED = 0,
  COROSRV_STOP = 1,      /* an end-of-generation token, a stop string, or the grammar has come to its end */
  COROSRV_LENGTH = 2,    /* max_tokens reached, or the slot's context is full */
  COROSRV_CANCELLED = 3, /* corosrv_reader_cancel or corosrv_reader_close */
  COROSRV_ERROR = 4      /* the chunk's text is the message */
} corosrv_finish;

/* A made-up model that emits tokens at a set rate: for load tests of everything around a model. */
typedef struct corosrv_synthetic {
  double tokens_per_s;         /* of each sequence; 0 is as fast as the loop goes */
  double prefill_tokens_per_s; /* of all sequences together; 0 is at once */
  int32_t length;              /* tokens until the model ends a sequence by itself; 0 is never */
} corosrv_synthetic;

/* Who multiplies matrices and computes attention. */
typedef enum corosrv_kernels {
  COROSRV_KERNELS_AUTO = 0,    /* corosrv where it is faster and the processor can, else libllama */
  COROSRV_KERNELS_GGML = 1,    /* libllama alone */
  COROSRV_KERNELS_AVX2 = 2,    /* as AUTO, on a processor that has AVX2 and nothing newer */
  COROSRV_KERNELS_AVX_VNNI = 3 /* as AVX2, with the dot products of AVX-VNNI where it has them */
} corosrv_kernels;

/* Where the largest logits of a row are found. */
typedef enum corosrv_candidates {
  COROSRV_CANDIDATES_AUTO = 0,     /* on the device of the output layer, where that is not the processor */
  COROSRV_CANDIDATES_DEVICE = 1,   /* there in any case */
  COROSRV_CANDIDATES_PROCESSOR = 2 /* which gets all logits */
} corosrv_candidates;

/* What becomes of the vectors that a model makes of a text's tokens; libllama's numbers. */
typedef enum corosrv_pooling {
  COROSRV_POOLING_MODEL = -1, /* as the model says; the mean where it does not */
  COROSRV_POOLING_NONE = 0,   /* all of them, one behind the other */
  COROSRV_POOLING_MEAN = 1,
  COROSRV_POOLING_CLS = 2,  /* the first token's */
  COROSRV_POOLING_LAST = 3, /* the last token's */
  COROSRV_POOLING_RANK = 4  /* none: the model's classification head makes a score of them */
} corosrv_pooling;

/* What a grammar may be; 0 of any stands for corosrv's own choice. */
typedef struct corosrv_grammar_limits {
  int32_t bytes;
  int32_t depth; /* of brackets in brackets, up to 1000 */
  int32_t rules;
  int32_t repetitions; /* of one item, in braces */
  int32_t elements;    /* with everything written out that is repeated */
  double token_ms;     /* of looking for one token, some: then the task ends with the code grammar_too_slow */
} corosrv_grammar_limits;

/* Where a model's weights lie and how its context is made, in libllama's terms and numbers. */
typedef struct corosrv_placement {
  int32_t gpu_layers;         /* layers on other devices than the processor; -1: all */
  const char* const* devices; /* names of those devices; none with n_devices > 0 is "none" */
  size_t n_devices;           /* 0: all that there are */
  int32_t split_mode;         /* llama_split_mode */
  int32_t main_gpu;           /* the one device of split mode 0 */
  const float* tensor_split;  /* parts of the devices, in their order */
  size_t n_tensor_split;      /* 0: as libllama chooses */
  int32_t flash_attn;         /* llama_flash_attn_type; -1: where it can */
  int32_t load_mode;          /* llama_load_mode */
  int32_t numa;               /* ggml_numa_strategy; 0: none. Holds for the process */
  int32_t cache_type_k;       /* ggml_type of the cached keys */
  int32_t cache_type_v;       /* and values */
  int32_t rope_scaling;       /* llama_rope_scaling_type; -1: the model's */
  double rope_freq_base;      /* 0: the model's, as what follows */
  double rope_freq_scale;
  double yarn_ext_factor; /* negative: the model's, as what follows */
  double yarn_attn_factor;
  double yarn_beta_fast;
  double yarn_beta_slow;
  int32_t yarn_orig_ctx; /* 0: the model's */
} corosrv_placement;

typedef struct corosrv_options {
  const char* model;                  /* path of a GGUF; unused when `synthetic` is given */
  const corosrv_synthetic* synthetic; /* NULL: load `model` */
  int32_t context;                    /* tokens of context per slot; 0 is what the model was trained for */
  int32_t slots;                      /* sequences decoded at once */
  int32_t queue;                      /* tasks that may wait for a slot */
  int32_t tasks_of_owner;             /* that may run and wait, of each owner but 0; 0 sets no limit */
  int32_t threads;                    /* compute threads; 0 lets libllama choose */
  int32_t batch;                      /* rows of one step at most */
  double step_ms;                     /* target duration of a step while others stream */
  int64_t reader_bytes;               /* unread text at which a reader's sequences are paused */
  int64_t cache_bytes;                /* of saved prefixes, at most; 0 shares none */
  int64_t row_bytes;                  /* of embedding rows of all tasks that run and wait; one may have more if alone */
  int32_t kv_unified;                 /* 1: all slots share their context: one sequence may use all of it */
  int32_t deterministic;              /* 1: no result depends on the rest of a batch; slower */
  int32_t context_shift;              /* 1: a full context may be shifted; a model that cannot is not loaded */
  int32_t safe_load;                  /* 1: no repacked weights (libllama's use_extra_bufts=false) */
  int32_t kernels;                    /* corosrv_kernels */
  int32_t candidates;                 /* corosrv_candidates */
  uint64_t copy_bytes;                /* that corosrv's kernels may take for weights in another order, at most */
  int32_t pooling;                    /* corosrv_pooling */
  const char* const* adapters;        /* paths of LoRA adapters, to be loaded with the model */
  size_t n_adapters;
  corosrv_grammar_limits grammars;
  double queue_s;       /* that a task may wait for its first slot: then its error has the code queue_timeout; 0: any */
  double stall_s;       /* that a reader may be full: then its tasks' errors have the code client_too_slow; 0: any */
  double idle_s;        /* for which a slot keeps its memory after its last use */
  int32_t drafted_rows; /* guesses of next tokens that one step may compute, at most; 0: none */
  const char* draft;    /* path of a GGUF with a second model that guesses them; NULL: none does */
  double draft_p_min;   /* probability of a guess of that model, at least */
  int32_t draft_context;              /* tokens of its context per slot; 0: as many as a slot has */
  const corosrv_placement* placement; /* NULL: as libllama does by default */
  int32_t record_fd;    /* of a file with a head (recording/ring_file.h), for what reaches the loop; 0: none */
  int64_t record_bytes; /* of that file, at most */
  int32_t replay_fd;    /* of such a file, whose jobs the loop gets instead of any others; 0: none */
  int64_t replay_until; /* the last step of the replay; 0: all */
  int32_t replay_tells; /* 1: a line for each step; 2: each text; 3: both */
} corosrv_options;

/* What a replay came to, so far. */
typedef struct corosrv_replay {
  uint64_t steps;
  uint64_t steps_differ; /* from what the recording says of them */
  uint64_t texts;        /* that ended, vectors among them */
  uint64_t texts_differ;
  int32_t is_over;
  const char* lines; /* what there is to say since the last call, until the next one */
} corosrv_replay;

/* What the model is. Strings live as long as the engine. */
typedef struct corosrv_model_info {
  int32_t context;       /* tokens of context of one sequence, as opened */
  int32_t context_train; /* tokens of context the model was trained for */
  int32_t n_vocab;
  int32_t n_embd;
  int32_t vocab_type; /* libllama's llama_vocab_type */
  int32_t add_bos;    /* 1: prompts begin with the beginning-of-sequence token */
  int32_t bos;        /* token id or -1 */
  int32_t eos;        /* token id or -1 */
  uint64_t n_params;
  uint64_t size;         /* bytes of weights */
  int32_t own_kernels;   /* 1: corosrv's kernels compute a part of the model, and results differ in rounding */
  int32_t picks;         /* 1: the device of the output layer picks the largest logits, and keeps the others */
  uint64_t packed_bytes; /* of weights that corosrv repacked for its own kernels, and holds beside the originals */
  const char* ftype;
  const char* description;
  const char* chat_template;   /* "" when the model carries none */
  int32_t generates;           /* 1: text; 0: vectors or scores alone */
  int32_t n_vector;            /* numbers in a vector; 0: the model makes none */
  int32_t pooling;             /* corosrv_pooling, but COROSRV_POOLING_MODEL */
  int32_t add_eos;             /* 1: prompts end with the end token */
  int32_t add_sep;             /* 1: the separator stands between the two texts of a pair */
  int32_t sep;                 /* token id or -1, as those that follow */
  int32_t fim_prefix;          /* fill in the middle: stands before what is before the gap, */
  int32_t fim_suffix;          /* before what is behind it, */
  int32_t fim_middle;          /* and before what fills it */
  int32_t fim_repository;      /* stands before a repository's name, */
  int32_t fim_file;            /* and before a file's */
  const char* rerank_template; /* of a query and a document; "" when the model carries none */
  const char* sampling;        /* lines of KEY=VALUE, of the file's general.sampling keys; "" when it has none */
  int32_t n_adapters;          /* LoRA adapters that were loaded */
  int32_t row_width;           /* numbers of an embedding row in a prompt; 0: the model takes none */
  int32_t shared_cells;        /* tokens that all slots hold together, at most; 0: each has room for a whole context */
} corosrv_model_info;

/* Of what a sampler has to remember beside the tokens: where its random numbers are, and two floats of mirostat's or
 * adaptive-p's. In the byte order of the machine. */
enum { COROSRV_STATE_BYTES = 16 };

typedef struct corosrv_bias {
  int32_t token;
  float bias; /* added to the token's logit; -INFINITY bans it */
} corosrv_bias;

typedef struct corosrv_text {
  const char* data;
  size_t size;
} corosrv_text;

/* What stands between the model's logits and the draw. */
typedef enum corosrv_sampler {
  COROSRV_SAMPLER_PENALTIES = 0, /* repeat, presence, frequency */
  COROSRV_SAMPLER_DRY = 1,
  COROSRV_SAMPLER_TOP_N_SIGMA = 2,
  COROSRV_SAMPLER_TOP_K = 3,
  COROSRV_SAMPLER_TYPICAL_P = 4,
  COROSRV_SAMPLER_TOP_P = 5,
  COROSRV_SAMPLER_MIN_P = 6,
  COROSRV_SAMPLER_XTC = 7,
  COROSRV_SAMPLER_TEMPERATURE = 8,
  COROSRV_SAMPLER_ADAPTIVE_P = 9 /* draws, and so comes last wherever it is named */
} corosrv_sampler;

/* Order of application: bias, then `samplers`, then the best token where the temperature is 0, else a draw. The grammar
 * looks at what is left where the order first cuts the vocabulary down; where it allows none of that, it goes first,
 * and the cut leaves the best of what it allows. */
typedef struct corosrv_sampling {
  float temperature; /* 0 is greedy */
  int32_t top_k;     /* 0 keeps all */
  float top_p;       /* 1 keeps all */
  float min_p;       /* 0 keeps all */
  float typical_p;   /* 1 keeps all */
  float repeat_penalty;
  float presence_penalty;
  float frequency_penalty;
  int32_t repeat_last_n; /* tokens that penalties look back on; -1 is the context */
  uint32_t seed;
  int32_t ignore_eos; /* 1: end-of-generation tokens are never drawn */
  const corosrv_bias* biases;
  size_t n_biases;
  corosrv_text grammar;                 /* GBNF that the text has to follow; of size 0: none */
  const corosrv_text* grammar_triggers; /* the grammar begins with the first of these in the text; none: at once */
  size_t n_grammar_triggers;
  float top_n_sigma; /* 0 or less keeps all */
  float xtc_probability;
  float xtc_threshold;
  float dynatemp_range; /* 0: the temperature is fixed */
  float dynatemp_exponent;
  float dry_multiplier; /* 0 is off */
  float dry_base;       /* below 1 is off */
  int32_t dry_allowed_length;
  int32_t dry_penalty_last_n; /* tokens that DRY looks back on; -1 is the context */
  const corosrv_text* dry_breakers;
  size_t n_dry_breakers;
  int32_t mirostat; /* 0, 1 or 2; 1 and 2 take the place of every cut */
  float mirostat_tau;
  float mirostat_eta;
  float adaptive_target; /* below 0 is off */
  float adaptive_decay;
  int32_t min_keep;        /* candidates that typical_p, top_p, min_p and xtc leave */
  const int32_t* samplers; /* corosrv_sampler, each once at most */
  size_t n_samplers;
  int32_t n_probs;              /* likeliest tokens that are told of with each; -1: chunks tell of no tokens */
  int32_t post_sampling_probs;  /* 1: of the distribution that was drawn from, not of the model's own */
  int32_t thought_tokens;       /* that an answer may have between `thought_opening` and `thought_closing` */
  corosrv_text thought_opening; /* of size 0: the prompt has begun the thoughts */
  corosrv_text thought_closing;
  const int32_t* thought_ending; /* tokens that are drawn when those of the thoughts are spent */
  size_t n_thought_ending;       /* 0: thoughts have no limit */
} corosrv_sampling;

typedef enum corosrv_kind {
  COROSRV_GENERATE = 0,
  COROSRV_EMBED = 1, /* the prompt's vector; sampling, stops and max_tokens have no meaning then */
  COROSRV_RANK = 2   /* the prompt's score, a vector of one number */
} corosrv_kind;

/* Embedding rows that stand in a row, and that the model reads in a way of their own. */
typedef struct corosrv_row_segment {
  int32_t n_rows;
  int32_t is_non_causal;    /* 1: each row sees all of them; they have to fit into one step */
  int32_t n_positions;      /* by how much the positions of the sequence move, at most n_rows; 0: n_rows */
  const int32_t* positions; /* of M-RoPE, four of each row: t, y and x from the segment's first position on, and z. t
                             * never falls, and is less than n_positions. NULL: one after another */
} corosrv_row_segment;

/* One generation, or one prompt to be embedded. A reader may carry several; their chunks are told apart by `index`. */
typedef struct corosrv_task {
  const int32_t* tokens;
  size_t n_tokens;
  int32_t max_tokens; /* -1: until the context is full; 0 reads the prompt and ends */
  corosrv_sampling sampling;
  const corosrv_text* stops;
  size_t n_stops;
  int32_t share_prefix; /* 0: computes its whole prompt, and leaves nothing behind for others */
  int32_t kind;         /* corosrv_kind */
  int32_t pools;        /* of COROSRV_EMBED. 0: the vectors of all tokens, one behind the other, as they are */
  int32_t normalize; /* of COROSRV_EMBED that pools. -1: as it is; 0: the largest number is 32760; p: the p-norm is 1 */
  double max_ms;     /* of generating, from the first token on; 0: no limit */
  int32_t scores_prompt;       /* 1: the first chunks tell how likely the prompt's tokens were; shares no prefix */
  uint64_t owner;              /* prefixes are shared among tasks of the same owner only */
  const float* adapter_scales; /* how much of each LoRA adapter, as many as were loaded; NULL: nothing of any */
  int32_t tells_progress; /* 1: a chunk before anything of the prompt is computed, and one after each piece of it */
  int64_t id;             /* the caller's name for it, which corosrv_slot shows */
  int32_t slot;           /* where it has to run, counted from 1; 0: anywhere */
  int32_t context_shift;  /* 1: a full context loses tokens behind the first n_keep, and the answer goes on */
  int32_t n_keep;         /* -1: the prompt; the beginning-of-sequence token that the model wants comes on top */
  int32_t n_discard;      /* that it loses; 0: half of those behind n_keep */
  int32_t priority;       /* who of its owner's is first in the queue: 1 before 9; 0 is 5 */
  int32_t tier;           /* of its owner, from 0 to 9: all of a better tier go first, and 0 is the best */
  double weight;          /* of its owner: its share of the machine beside others of its tier; finite, above 0 */
  const float* rows;      /* embedding rows, row_width numbers each, which stand where an id in `tokens` is negative;
                           * of COROSRV_GENERATE. Prompts share what is computed of rows with equal ids */
  size_t n_rows;
  const corosrv_row_segment* row_segments; /* of all rows, in their order; NULL: rows are read as tokens are */
  size_t n_row_segments;
  const int32_t* prediction; /* of COROSRV_GENERATE: the text that much of the answer is expected to be */
  size_t n_prediction;       /* tokens; 0: nothing is expected */
  double deadline;           /* by CLOCK_MONOTONIC, when the task ends with the code queue_timeout or deadline_exceeded:
                              * before it had a slot, or later; 0: never */
  const int32_t* generated;  /* of COROSRV_GENERATE: tokens that an earlier engine drew for this task, as chunks told of
                              * them. The answer goes on behind them as it would have there, where the same tokens give
                              * the same logits. They count in max_tokens, and max_ms counts anew. How likely they were
                              * is not told again, nor is it of those whose text was not certain yet */
  size_t n_generated;
  size_t n_sent_bytes;  /* of the answer's text that chunks had until then: no chunk repeats them */
  const uint8_t* state; /* of the chunk that told of the last of `generated` */
  size_t n_state;       /* COROSRV_STATE_BYTES; 0 where nothing was generated, or for another task, which this one
                         * branches from: this one's seed draws the next token */
  int32_t tells_state;  /* of COROSRV_GENERATE. 1: chunks have what a later engine needs to go on behind them; text that
                         * was held back, as it may begin a stop string, is not given out before an error */
} corosrv_task;

/* A token and how likely it was. Each token that came is followed by the likeliest in its place, best first. */
typedef struct corosrv_likelihood {
  int32_t token;
  float logprob;      /* natural, finite; NaN: the first token of a prompt, which nothing stands before */
  int32_t n_top;      /* how many of the entries behind it are the likeliest in its place; of those, 0 */
  int32_t piece_size; /* bytes that it adds to the text */
} corosrv_likelihood;

/* Pieces stand one behind the other, in the order of the entries. */
typedef struct corosrv_token_list {
  const corosrv_likelihood* entries;
  size_t n_entries;
  const char* pieces;
  size_t pieces_size;
} corosrv_token_list;

typedef struct corosrv_chunk {
  int32_t index;    /* which task of the reader, in the order submitted */
  int32_t n_tokens; /* tokens generated since the task's previous chunk, the end token included */
  int32_t finish;   /* corosrv_finish */
  int32_t prompt_tokens;
  int32_t cached_tokens;   /* of these, how many were not computed for this task */
  int32_t drafted_tokens;  /* guesses of next tokens that were computed for it */
  int32_t accepted_tokens; /* of these, those that came true */
  int32_t read_tokens;     /* of the prompt's, how many have been read; -1 where tells_progress does not want it told */
  double prompt_ms;        /* from the slot to the first token, or to now where there is none */
  double decode_ms;        /* from the first token to the last so far */
  double compute_ms;       /* the task's part of the time of each step so far */
  const char* text;        /* whole UTF-8 characters; the message when finish is COROSRV_ERROR */
  size_t text_size;
  const float* vector;        /* of COROSRV_EMBED and COROSRV_RANK, in the terminal chunk */
  size_t n_vector;            /* numbers */
  corosrv_text stopping_word; /* the stop string that ended the task; in its terminal chunk, as slot */
  const char* code;           /* of an error, a word for programs; "" is a bug or a failed decode */
  int32_t slot;               /* where it ran last, or -1 */
  int32_t n_dropped;          /* tokens that shifts of the context have dropped; in the terminal chunk */
  corosrv_token_list tokens;  /* that `text` is made of: their pieces, without the listed others', are its bytes */
  corosrv_token_list prompt_info;
  const int32_t* ids; /* where tells_state wants it: the n_tokens tokens. Some of their text may not be certain yet */
  size_t n_ids;
  const uint8_t* state; /* the sampler's behind the last of them */
  size_t n_state;       /* COROSRV_STATE_BYTES; 0 without ids */
} corosrv_chunk;

/* What one take gives; the chunks live until the reader's next take or close. */
typedef struct corosrv_batch {
  const corosrv_chunk* chunks;
  size_t n_chunks;
} corosrv_batch;

enum { COROSRV_HISTOGRAM_BUCKETS = 16 };

/* Bucket i counts observations of at most 0.001 * 2^i seconds; the last one counts all others. */
typedef struct corosrv_histogram {
  uint64_t buckets[16];
  double sum;
} corosrv_histogram;

typedef struct corosrv_stats {
  uint64_t tasks_stop;
  uint64_t tasks_length;
  uint64_t tasks_cancelled;
  uint64_t tasks_error;
  uint64_t tasks_refused; /* queue full */
  uint64_t prompt_tokens;
  uint64_t cached_tokens;
  uint64_t generated_tokens;
  uint64_t drafts;                      /* times that next tokens were guessed */
  uint64_t draft_tokens;                /* guesses of next tokens that were computed */
  uint64_t draft_accepted_tokens;       /* of these, those that came true */
  uint64_t draft_model_tokens;          /* of draft_tokens, those of the draft model, */
  uint64_t draft_model_accepted_tokens; /* and of these, those that came true */
  uint64_t steps;
  uint64_t eventfd_writes;
  uint64_t readers_polled; /* readers that got no descriptor and are looked at again and again */
  uint64_t preempted;      /* times that a task lost its slot and went on later */
  uint64_t later_tokens;   /* of ended tasks, generated behind their first one: those that decode_s went into */
  uint64_t slot_steps;     /* slots in use, summed over the steps */
  uint64_t longest_task;   /* tokens of one, its prompt included */
  double step_s;           /* seconds spent in steps */
  double prompt_s;         /* of ended tasks: from the slot to the first token */
  double decode_s;         /* of ended tasks: from the first token to the last */
  int32_t threads;         /* that compute a step, as of now */
  int32_t slots;           /* in all */
  int32_t running;         /* slots in use */
  int32_t waiting;         /* tasks for a slot */
  int32_t paused;          /* with or without a slot, and waiting for their reader to be read */
  int32_t readers;         /* alive, on either side */
  int32_t cache_entries;
  uint64_t cache_bytes; /* of saved prefixes */
  corosrv_histogram queue_wait;
  corosrv_histogram ttft;
  corosrv_histogram itl;
} corosrv_stats;

/* What a slot does, or did last. */
typedef struct corosrv_slot {
  int64_t task; /* its id; -1: nothing so far, and what follows says nothing */
  int32_t is_busy;
  int32_t prompt_tokens;
  int32_t computed_tokens; /* of the prompt, so far */
  int32_t cached_tokens;   /* of the prompt, not computed for it */
  int32_t generated_tokens;
  int32_t has_new_line; /* 1: in the text so far */
} corosrv_slot;

/* What a slot's last task left; all of it belongs to whoever made it. */
typedef struct corosrv_slot_content {
  const int32_t* tokens;
  size_t n_tokens;
  const float* adapter_scales; /* that they were computed with; none: without adapters */
  size_t n_adapter_scales;
  const uint8_t* state; /* what the model has of the tokens, and perhaps of more behind them: libllama's own format */
  size_t state_size;
} corosrv_slot_content;

typedef enum corosrv_slot_action {
  COROSRV_SLOT_SAVE = 0,    /* the answer has the slot's content */
  COROSRV_SLOT_RESTORE = 1, /* takes a content in as what this slot's last task left */
  COROSRV_SLOT_ERASE = 2    /* forgets it; the answer has the tokens that were forgotten */
} corosrv_slot_action;

/* What a JSON text may ask of its parser. */
typedef struct corosrv_json_limits {
  size_t depth;  /* of brackets in brackets */
  size_t keys;   /* of one object */
  size_t digits; /* of one number, its exponent taken for so many zeros */
  size_t values; /* in all */
} corosrv_json_limits;

typedef enum corosrv_json_fault {
  COROSRV_JSON_FINE = 0,
  COROSRV_JSON_DEPTH = 1,
  COROSRV_JSON_KEYS = 2,
  COROSRV_JSON_DIGITS = 3,
  COROSRV_JSON_VALUES = 4
} corosrv_json_fault;

/* One message of a conversation; both texts are NUL-terminated. */
typedef struct corosrv_chat_message {
  const char* role;
  const char* content;
} corosrv_chat_message;

#ifdef __cplusplus
}
#endif

#endif /* COROSRV_TYPES_H_ */
