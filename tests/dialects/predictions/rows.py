"""What other servers of predictions got wrong and this one must not, by number, with the tests that show it.

The numbers are those of the project's list of such faults. A test is named by its file below tests/ and its function.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """What is required, in words, and what fails where it does not hold."""

    words: str
    tests: tuple[tuple[str, str], ...]


def row(words: str, *tests: str) -> Row:
    """`tests`: each as FILE FUNCTION."""
    named = [test.partition(" ") for test in tests]
    return Row(words, tuple((f"tests/{file}.py", function) for file, _, function in named))


ROWS: dict[int, Row] = {
    1: row(
        "no path is made of an id, and directories go with their predictions",
        "dialects/predictions/test_parse test_ids_are_words_that_are_safe_everywhere",
        "dialects/predictions/test_http test_an_id_in_the_path_that_cannot_be_one_is_told_so",
        "dialects/predictions/test_service test_nothing_is_left_in_the_file_system",
        "dialects/predictions/test_faults test_every_prediction_ends_once_and_nothing_is_left",
    ),
    2: row(
        "an unusable id costs no slot",
        "dialects/predictions/test_http test_an_id_that_cannot_be_one_leaves_nothing_behind",
        "workers/worker/test_worker_predictions test_a_reader_closed_while_its_input_is_written_leaves_no_permit",
    ),
    3: row(
        "a running id is taken", "dialects/predictions/test_http test_a_post_with_a_running_id_leaves_that_one_alone"
    ),
    4: row(
        "whoever has an answer finds the slot free",
        "dialects/predictions/test_http test_five_hundred_requests_one_after_the_other_meet_no_full_slot",
        "workers/worker/test_worker_predictions test_the_permit_is_back_when_the_end_can_be_read",
    ),
    5: row(
        "a dead worker is DEFUNCT and refuses with 503 at once",
        "serve/test_predictor_shutdown test_a_killed_worker_is_told_at_once",
        "serve/test_predictor_shutdown test_a_worker_that_is_killed_fails_what_runs",
        "workers/worker/test_worker_faults test_the_death_of_an_idle_worker_is_noticed_at_once",
    ),
    6: row(
        "a stop drains what nobody waits for too, its last webhook included",
        "serve/test_predictor_shutdown test_what_runs_finishes_and_is_told_of_before_the_end",
        "serve/test_predictor_shutdown test_a_last_webhook_that_has_to_be_repeated_is_waited_for",
    ),
    7: row(
        "nothing keeps a server from its end",
        "serve/test_predictor_shutdown test_a_second_signal_fails_what_runs",
        "serve/test_predictor_shutdown test_what_takes_longer_than_the_drain_time_is_failed",
        "serve/test_predictor_shutdown test_a_dead_receiver_does_not_keep_the_server_beyond_the_drain_time",
    ),
    8: row(
        "no worker outlives its set-up",
        "serve/test_predictor_shutdown test_a_stop_during_the_set_up_stops_the_worker",
        "serve/test_predictor_setup test_a_set_up_that_hangs_has_its_time",
        "workers/worker/test_worker_setup test_a_time_out_ends_grandchildren_too",
        "workers/worker/test_worker_setup test_a_worker_that_ignores_sigterm_is_killed_when_its_time_is_over",
    ),
    9: row(
        "the limit covers the whole start, and a death ends it",
        "workers/worker/test_worker_setup test_the_limit_covers_the_start_of_the_process",
        "workers/worker/test_worker_setup test_a_worker_that_dies_before_it_says_anything_does_not_start_for_ever",
    ),
    10: row(
        "all that a set-up prints is in its logs",
        "workers/worker/test_child_setup test_all_that_set_up_prints_comes_before_its_outcome",
        "workers/worker/test_worker_setup test_what_is_printed_is_in_the_logs_of_the_setup",
    ),
    11: row(
        "a set-up that failed says so and why",
        "serve/test_predictor_setup test_a_predictor_that_cannot_be_set_up_says_why",
    ),
    12: row(
        "logs are those of their own prediction",
        "workers/worker/test_child_logs test_an_unterminated_line_stays_in_its_own_prediction",
        "workers/worker/test_child_logs test_what_a_leftover_thread_prints_goes_to_the_servers_log",
        "workers/worker/test_child_logs test_what_a_leftover_task_prints_goes_to_the_servers_log",
        "workers/worker/test_child_logs test_predictions_at_once_keep_their_prints_apart",
    ),
    13: row(
        "what child processes and C code print is kept",
        "workers/worker/test_child_logs test_child_processes_belong_to_the_prediction",
        "workers/worker/test_child_logs test_c_code_belongs_to_the_prediction",
    ),
    14: row(
        "failed and canceled answers have logs and output",
        "dialects/predictions/test_http test_a_failure_is_data_and_keeps_its_logs",
        "dialects/predictions/test_http test_a_cancel_answers_who_waits_for_the_result",
        "dialects/predictions/test_http_streams test_a_failure_keeps_what_was_sent_before",
        "dialects/predictions/test_prediction test_what_was_brought_forth_outlives_a_bad_end",
    ),
    15: row(
        "canceled is what somebody canceled",
        "workers/worker/test_child_cancel test_an_error_that_says_cancelled_is_an_error",
        "workers/worker/test_child_cancel test_who_cancels_himself_has_failed",
    ),
    16: row(
        "no cancel is lost, and none meets another prediction",
        "workers/worker/test_child_cancel test_no_cancel_is_lost",
        "workers/worker/test_child_cancel test_no_cancel_hits_the_next_prediction",
        "workers/worker/test_child_cancel test_a_cancel_that_comes_first_keeps_user_code_from_starting",
    ),
    17: row(
        "a health check holds nothing up",
        "workers/worker/test_child_health test_a_hanging_check_holds_up_neither_cancels_nor_predictions",
    ),
    18: row(
        "async generators are streamed live",
        "workers/worker/test_child_predictions test_an_async_generator_is_streamed_live",
        "workers/worker/test_child_predictions test_an_async_generator_that_fails_keeps_its_chunks",
    ),
    19: row(
        "webhooks leave in order",
        "dialects/predictions/test_webhooks test_events_leave_in_order_each_a_later_state",
        "dialects/predictions/test_webhooks test_a_start_is_never_sent_as_an_end",
    ),
    20: row(
        "webhooks of outputs are throttled",
        "dialects/predictions/test_webhooks test_outputs_are_throttled_and_the_last_one_is_sent",
        "dialects/predictions/test_webhooks test_a_slow_receiver_gets_one_event_for_all_that_happened_meanwhile",
    ),
    21: row(
        "the last change of a window is sent",
        "dialects/predictions/test_webhooks test_the_first_output_goes_at_once_and_the_next_ones_when_the_window_ends",
        "dialects/predictions/test_webhooks test_the_last_output_is_sent_where_the_end_is_not_wanted",
    ),
    22: row(
        "Retry-After counts, and no redirect becomes a GET",
        "dialects/predictions/test_webhooks test_the_receivers_own_delay_is_honoured",
        "dialects/predictions/test_delivery test_these_redirects_keep_method_and_body",
        "dialects/predictions/test_delivery test_other_redirects_are_failures",
    ),
    23: row(
        "a webhook that is no URL is refused, and null is absent",
        "dialects/predictions/test_http test_a_webhook_that_is_no_url_is_refused",
        "dialects/predictions/test_parse test_null_equals_absent_and_unknown_fields_are_ignored",
    ),
    24: row(
        "no file of the server is an input",
        "dialects/predictions/test_http test_no_file_of_the_server_is_an_input",
        "dialects/predictions/test_values test_no_file_of_the_server_can_be_named",
        "workers/worker/test_inputs test_a_local_file_is_refused_unless_it_is_the_authors_default",
    ),
    25: row(
        "a file that is not there fails",
        "workers/worker/test_inputs test_broken_base64_fails_the_prediction_by_the_inputs_name",
        "workers/worker/test_outputs test_a_file_that_cannot_be_read_fails_the_prediction_and_is_named",
        "dialects/predictions/test_files test_a_file_that_is_gone_fails_the_prediction",
    ),
    26: row(
        "outputs keep their order and names, nested ones too",
        "dialects/predictions/test_files test_uploads_of_one_output_overlap_and_keep_their_places",
        "dialects/predictions/test_files test_files_are_put_where_they_stand_in_the_output",
        "workers/worker/test_outputs test_equal_names_within_one_output_become_distinct",
    ),
    27: row(
        "null is taken where it may be, and numbers arrive as their type",
        "dialects/predictions/test_validation test_what_fits_is_taken_and_converted",
        "dialects/predictions/test_values test_inputs_arrive_converted_and_outputs_come_back_with_their_files",
    ),
    28: row(
        "errors are JSON, and name places in parts",
        "dialects/predictions/test_http test_bodies_are_json_or_refused",
        "dialects/predictions/test_http test_a_body_over_the_limit_is_refused_before_it_is_read",
        "dialects/predictions/test_validation test_what_does_not_fit_is_refused_with_its_place",
    ),
    29: row(
        "a body without a type is read", "dialects/predictions/test_http test_a_body_without_a_type_is_not_ignored"
    ),
    30: row(
        "secrets are never shown",
        "dialects/predictions/test_http test_secrets_are_never_shown",
        "dialects/predictions/test_validation test_no_message_holds_a_secret",
    ),
    31: row(
        "moments are shown, predictions can be looked up, and what is listed answers",
        "dialects/predictions/test_prediction test_moments_are_shown_once_they_have_passed",
        "dialects/predictions/test_http test_a_prediction_is_answered_with_its_object",
        "dialects/predictions/test_http test_the_index_lists_what_answers",
    ),
    32: row(
        "a repeated PUT gets the kept result",
        "dialects/predictions/test_http test_a_put_that_is_answered_twice_is_answered_the_same",
        "dialects/predictions/test_supervisor test_a_finished_prediction_is_remembered_for_its_time",
    ),
    33: row(
        "events have numbers to go on from",
        "dialects/predictions/test_http_streams test_who_was_cut_off_goes_on_behind_what_it_has",
        "dialects/predictions/test_http_streams test_who_comes_too_late_for_all_events_is_told_so",
    ),
    34: row(
        "counters are exact",
        "workers/dispatch/test_permits test_an_idle_slot_that_is_poisoned_is_available_no_more",
        "workers/worker/test_worker_chaos test_every_prediction_ends_once_whatever_happens",
    ),
    35: row("no metric is value and parent", "workers/worker/test_metrics test_no_name_is_a_value_and_a_parent"),
    36: row(
        "what is described is what is done",
        "workers/worker/test_schema test_the_document_has_every_endpoint_and_component_and_no_loose_reference",
        "dialects/predictions/test_http test_the_document_describes_this_predictor",
        "dialects/predictions/test_http test_other_methods_are_told_which_are_allowed",
        "dialects/predictions/test_validation test_unknown_fields_are_dropped_with_a_warning_that_holds_no_value",
    ),
}
