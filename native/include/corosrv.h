/* The C API of the decode loop: opaque handles, and calls that each return a status. Its types are in corosrv_types.h.
 *
 * cffi reads both files (native/build_native.py).
 *
 * Conventions
 * - A call that can fail returns a corosrv_code. Calls that take `message` write up to `message_size` bytes of
 *   NUL-terminated UTF-8 into it when they fail: one sentence that says what to do.
 * - No call throws, waits for a step, or calls Python. Those that wait say so: corosrv_engine_close,
 *   corosrv_vocabulary_open.
 * - Any thread may make any call, except where the call says otherwise.
 * - After a fork() the child owns none of this: every call answers COROSRV_FORKED, and closing only closes the
 *   child's copies of the descriptors.
 */
#ifndef COROSRV_H_
#define COROSRV_H_

#include "corosrv_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct corosrv_engine corosrv_engine;
typedef struct corosrv_vocabulary corosrv_vocabulary;
typedef struct corosrv_reader corosrv_reader;
typedef struct corosrv_slot_request corosrv_slot_request;

/* Returns the hash of the llama.h and ggml.h this library was compiled with (hex SHA-256), "" for builds without
 * libllama. */
const char* corosrv_llama_fingerprint(void);

/* Starts the decode thread, which loads the model; returns at once. */
int corosrv_engine_open(const corosrv_options* options, corosrv_engine** engine, char* message, size_t message_size);

/* Sets `state` to a corosrv_state; `message` gets the reason when that is COROSRV_FAILED. */
int corosrv_engine_state(corosrv_engine* engine, int* state, char* message, size_t message_size);

/* Returns the part of the load that is done, of 1: it does not reach 1 where the model is ready before. */
double corosrv_engine_loaded_part(corosrv_engine* engine);

/* Returns a descriptor that turns readable once the engine has left COROSRV_STARTING, and stays so. The engine owns it.
 */
int corosrv_engine_fd(corosrv_engine* engine);

/* Describes the model; COROSRV_NOT_READY before it is loaded. */
int corosrv_engine_info(corosrv_engine* engine, corosrv_model_info* info);

/* Copies the counters as of the last step. */
int corosrv_engine_stats(corosrv_engine* engine, corosrv_stats* stats);

/* COROSRV_OK while all that reaches the loop is recorded, or nothing is to be; else `message` says why it is not. */
int corosrv_engine_recording(corosrv_engine* engine, char* message, size_t message_size);

/* COROSRV_OK while the draft model guesses, or there is none; else `message` says why it does not any more. */
int corosrv_engine_draft(corosrv_engine* engine, char* message, size_t message_size);

/* Tells how far a replay is; COROSRV_INVALID where there is none. One thread at a time. */
int corosrv_engine_replay(corosrv_engine* engine, corosrv_replay* replay);

/* Copies the first `capacity` slots, as of the last step. */
int corosrv_engine_slots(corosrv_engine* engine, corosrv_slot* slots, size_t capacity);

/* Saves, restores or erases (`action`, a corosrv_slot_action) what the slot's last task left, as soon as nothing runs
 * in the slot. `owner`: what tasks of other owners left is not found. `content`: of COROSRV_SLOT_RESTORE; it is copied.
 * The caller limits how many requests there are at a time. */
int corosrv_engine_request_slot(corosrv_engine* engine, int action, int32_t slot, uint64_t owner,
                                const corosrv_slot_content* content, corosrv_slot_request** request, char* message,
                                size_t message_size);

/* Returns a descriptor that turns readable once there is an answer, also when the engine ends first. The request owns
 * it: never close it. */
int corosrv_slot_request_fd(corosrv_slot_request* request);

/* Gives the answer; COROSRV_NOT_READY before there is one. What `content` points to lives until the request is closed.
 */
int corosrv_slot_request_result(corosrv_slot_request* request, corosrv_slot_content* content, char* message,
                                size_t message_size);

/* Withdraws the request: it is not carried out if that has not begun. */
void corosrv_slot_request_abandon(corosrv_slot_request* request);

/* Abandons the request and frees it. NULL is harmless. */
void corosrv_slot_request_close(corosrv_slot_request* request);

/* Gives the vocabulary of the engine's model; COROSRV_NOT_READY before it is loaded. The engine owns it: it lives as
 * long as that, and is never closed. */
int corosrv_engine_vocabulary(corosrv_engine* engine, corosrv_vocabulary** vocabulary);

/* Loads the vocabulary of `options->model`, or of the synthetic one, without the weights. Waits, for some tenths of a
 * second; what else `options` say has no meaning. */
int corosrv_vocabulary_open(const corosrv_options* options, corosrv_vocabulary** vocabulary, char* message,
                            size_t message_size);

/* Frees a vocabulary that was opened, with no other call under way. NULL is harmless. */
void corosrv_vocabulary_close(corosrv_vocabulary* vocabulary);

/* Gives the number of tokens. */
int corosrv_vocabulary_size(corosrv_vocabulary* vocabulary, int32_t* n_tokens);

/* Turns text into token ids. Writes at most `capacity` ids and the number there are into `n_tokens`, which may be
 * larger: call again with room. `parse_special`: control markers in the text become control tokens. Takes time in
 * proportion to the text. */
int corosrv_tokenize(corosrv_vocabulary* vocabulary, const char* text, size_t text_size, int add_special,
                     int parse_special, int32_t* tokens, size_t capacity, size_t* n_tokens);

/* Gives the text of one token as it stands in answers; `special` prints all control tokens too. The text lives as long
 * as the vocabulary. */
int corosrv_token_text(corosrv_vocabulary* vocabulary, int32_t token, int special, corosrv_text* text);

/* Returns 1 when the token is a control token (`<|im_start|>`), 0 otherwise. */
int corosrv_token_is_control(corosrv_vocabulary* vocabulary, int32_t token);

/* Returns 1 when the token ends an answer, 0 otherwise. */
int corosrv_token_is_end(corosrv_vocabulary* vocabulary, int32_t token);

/* Makes these control tokens, which else add nothing to the text of an answer, add their text to it; grammars know them
 * by it then. Those that end an answer stay as they are. Before an engine's first task alone, and with no other call
 * under way: COROSRV_INVALID after it, and for ids that the model does not have. */
int corosrv_show_tokens(corosrv_vocabulary* vocabulary, const int32_t* tokens, size_t n_tokens, char* message,
                        size_t message_size);

/* Names of the chat templates that libllama has built in. Writes at most `capacity` of them, which live for ever, and
 * the number there are into `n_names`. */
int corosrv_chat_template_names(const char** names, size_t capacity, size_t* n_names);

/* Writes a conversation as the built-in chat template of this name has it: at most `capacity` bytes, without a NUL,
 * and the number there are into `text_size`, which may be larger: call again with room. `add_prompt`: the beginning of
 * the assistant's next message follows. COROSRV_INVALID for a name that libllama does not have. */
int corosrv_chat_template_apply(const char* name, const corosrv_chat_message* messages, size_t n_messages,
                                int add_prompt, char* text, size_t capacity, size_t* text_size);

/* Queues all tasks or none. The caller owns the reader and closes it. Compiles the grammars, which takes up to some
 * milliseconds for each that is different, and follows what was generated, some microseconds a token. */
int corosrv_submit(corosrv_engine* engine, const corosrv_task* tasks, size_t n_tasks, corosrv_reader** reader,
                   char* message, size_t message_size);

/* Gives the seconds after which so many tasks of this owner, which were just refused with COROSRV_QUEUE_FULL, will have
 * room, and counts on their coming then: whoever is refused next is told a later time. */
int corosrv_engine_retry_after(corosrv_engine* engine, size_t n_tasks, uint64_t owner, double* seconds);

/* Stops the process of this `pidfd`, which is copied, while a step is computed, and continues it after each, for a time
 * in which nothing is computed here: for `share` of the step's time. With a share of 0 it counts as one more sequence,
 * gets more the longer it waits beyond its `usual_s` (0: unknown), and keeps no token back beyond `itl_s`. While there
 * are no steps it runs all the time. Replaces the process before; negative for none. A process that has ended is
 * forgotten. */
int corosrv_engine_set_side_process(corosrv_engine* engine, int pidfd, double share, double itl_s, double usual_s);

/* Gives the seconds for which such processes were stopped since the model was loaded. */
int corosrv_engine_side_process_held(corosrv_engine* engine, double* held_s);

/* Ends every task, waiting or running, with an error chunk of this message, and refuses new ones. */
int corosrv_engine_drain(corosrv_engine* engine, const char* message);

/* Drains, then waits for the decode thread to end (one step, or the rest of a load) and frees the engine. Readers
 * may be closed before or after. Twice is harmless with NULL. */
void corosrv_engine_close(corosrv_engine* engine);

/* Returns a descriptor that is readable whenever corosrv_reader_take has something to give, or -1 when the process had
 * none left for it: look with corosrv_reader_has_chunks then. The reader owns the descriptor: never close it. */
int corosrv_reader_fd(corosrv_reader* reader);

/* Returns 1 when corosrv_reader_take has something to give, 0 otherwise. Never waits. */
int corosrv_reader_has_chunks(corosrv_reader* reader);

/* Takes all unread chunks, perhaps none. One thread at a time. `clear`: 1 makes the descriptor unreadable until there
 * is more, for whoever polls it; 0 saves that call for whoever watches its edges (EPOLLET), of which every signal is
 * one. */
int corosrv_reader_take(corosrv_reader* reader, int clear, corosrv_batch* batch);

/* Ends the reader's unfinished tasks within one step; their terminal chunks say COROSRV_CANCELLED. */
int corosrv_reader_cancel(corosrv_reader* reader);

/* Ends the thoughts of the reader's unfinished tasks, as if their budgets were spent; does nothing for those that have
 * none. */
int corosrv_reader_end_thoughts(corosrv_reader* reader);

/* Cancels, and frees the handle: the descriptor is closed as soon as the decode thread has let go of it too. NULL is
 * harmless.
 */
void corosrv_reader_close(corosrv_reader* reader);

/* Finds the first limit that a text exceeds (a corosrv_json_fault) and the byte where it does. Does not check that the
 * text is JSON. Takes some nanoseconds for each byte. */
int corosrv_check_json(const char* text, size_t text_size, const corosrv_json_limits* limits, int* fault, size_t* at);

#ifdef __cplusplus
}
#endif

#endif /* COROSRV_H_ */
