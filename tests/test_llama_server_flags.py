"""Every flag of llama-server is one of `corosrv serve`: taken, always so, without effect, or refused in words.

The lists are those of llama.cpp as llama-cpp-python 0.3.36 has it, without --slots, which takes a number here.
"""

import json

import click
import pytest
from click.testing import CliRunner, Result

from corosrv import cli
from corosrv.contracts import settings
from corosrv.contracts.settings import Settings

pytestmark = pytest.mark.usefixtures("bare_environment")

SWITCHES = """
-h --help --usage --version -cl --cache-list --completion-bash --swa-full -kvu --kv-unified -no-kvu --no-kv-unified
--cache-idle-slots --no-cache-idle-slots --context-shift --no-context-shift --perf --no-perf -e --escape --no-escape
-sp --special --warmup --no-warmup --spm-infill --ignore-eos -bs --backend-sampling -kvo --kv-offload -nkvo
--no-kv-offload --repack -nr --no-repack --no-host -cb --cont-batching -nocb --no-cont-batching --mmproj-auto
--no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload --list-devices -cmoe --cpu-moe --check-tensors
--op-offload --no-op-offload --reuse-port --cors-credentials --no-cors-credentials --ui-mcp-proxy --webui-mcp-proxy
--no-ui-mcp-proxy --no-webui-mcp-proxy -ag --agent -no-ag --no-agent --ui --webui --no-ui --no-webui --embedding
--embeddings --rerank --reranking --cache-prompt --no-cache-prompt --metrics --props --no-slots
--models-autoload --no-models-autoload --jinja --no-jinja --reasoning-preserve --no-reasoning-preserve
--skip-chat-parsing --no-skip-chat-parsing --prefill-assistant --no-prefill-assistant --lora-init-without-apply
--log-disable --log-jsonl --no-log-jsonl -v --verbose --log-verbose --offline --log-prefix --no-log-prefix
--log-timestamps --no-log-timestamps --spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-backend-sampling
--no-spec-draft-backend-sampling --embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default
--fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default
--gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default --spec-default
"""

WITH_A_VALUE = """
-t --threads -tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb
--cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch -lcs --lookup-cache-static -lcd
--lookup-cache-dynamic -c --ctx-size --kv-unified-per-slot -n --predict --n-predict -b --batch-size -ub
--ubatch-size --keep -ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -cram --cache-ram -fa
--flash-attn -r --reverse-prompt --samplers -s --seed --sampler-seq --sampling-seq --temp --temperature --top-k
--top-p --min-p --top-nsigma --top-n-sigma --xtc-probability --xtc-threshold --typical --typical-p --repeat-last-n
--repeat-penalty --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length
--dry-penalty-last-n --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp
--mirostat --mirostat-lr --mirostat-ent -l --logit-bias --grammar --grammar-file -j --json-schema -jf
--json-schema-file --pooling --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx
--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -ctk --cache-type-k -ctv --cache-type-v -dt
--defrag-thold -np --parallel -mm --mmproj -mmu --mmproj-url -mmdev --mmproj-device --image-min-tokens
--image-max-tokens --mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir --rpc -lm
--load-mode -lzm --lazy-mode --numa -dev --device -ot --override-tensor -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -ngl
--gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -fit --fit -fitt --fit-target -fitc
--fit-ctx --override-kv --lora --lora-scaled --control-vector --control-vector-scaled --control-vector-layer-range
-a --alias --tags -m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff --hf-file -hft --hf-token
--embd-normalize --host --port --path --cors-origins --cors-methods --cors-headers --api-prefix --ui-config
--webui-config --ui-config-file --webui-config-file --tools --tools-runtime --mcp-servers-config --mcp-servers-json
--api-key --api-key-file --ssl-key-file --ssl-cert-file --chat-template-kwargs -to --timeout --sse-ping-interval
--threads-http --cache-reuse --slot-save-path --media-path --models-dir --models-preset --models-max
--reasoning-format -rea --reasoning --reasoning-effort --reasoning-budget --reasoning-budget-message --chat-template
--chat-template-file -sps --slot-prompt-similarity --sleep-idle-seconds --log-file --log-prompts-dir --log-colors
-lv --verbosity --log-verbosity --spec-draft-hf -hfd -hfrd --hf-repo-draft --spec-draft-threads -td --threads-draft
--spec-draft-threads-batch -tbd --threads-batch-draft --spec-draft-cpu-mask -Cd --cpu-mask-draft
--spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-prio
--prio-draft --spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft
--spec-draft-cpu-strict-batch --cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft
--spec-draft-poll-batch --poll-batch-draft --spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd
--cache-type-v-draft --spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-n-cpu-moe
--spec-draft-ncmoe -ncmoed --n-cpu-moe-draft --spec-draft-n-max --spec-draft-n-min --spec-synth-len
--spec-synth-rates --spec-draft-p-split --draft-p-split --spec-draft-p-min --draft-p-min --spec-draft-device -devd
--device-draft --spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-model -md --model-draft
--spec-type --spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n
--spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m
--spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits
--draft --draft-n --draft-max --draft-min --draft-n-min --spec-ngram-size-n --spec-ngram-size-m
--spec-ngram-min-hits
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["serve", "-m", "synthetic:", *arguments], catch_exceptions=False)


def loaded(*arguments: str) -> Settings:
    """Returns the settings of a server that is started so, about which nothing is said."""
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return settings.load()


def refused(lines: list[list[str]]) -> list[list[str]]:
    """Returns the command lines that have an unknown flag, lack a value, or have one that no flag takes."""
    main = click.Context(cli.main, **cli.main.context_settings)
    parser = cli.serve.make_parser(click.Context(cli.serve, main))
    nothing, _, _ = parser.parse_args([])

    def is_good(line: list[str]) -> bool:
        try:
            options, others, _ = parser.parse_args([*line, "--port", "1"])
        except click.UsageError:
            return False
        return (options["app"], others) == (nothing["app"], [])

    return [line for line in lines if not is_good(line)]


def test_every_flag_of_llama_server_is_known_and_takes_its_value():
    two = "--control-vector-layer-range"
    valued = [[flag, "1", *(["2"] if flag == two else [])] for flag in WITH_A_VALUE.split()]

    assert refused([["--no-such"], ["--poll"], ["--perf", "1"]]) == [["--no-such"], ["--poll"], ["--perf", "1"]]
    assert refused([[flag] for flag in SWITCHES.split()] + valued) == []


def test_another_flag_is_refused_with_the_nearest():
    result = run("--dry-multiplyer", "1")

    assert result.exit_code == 2
    assert "--dry-multiplier" in result.stderr


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ("--typical 0.5 --top-nsigma 1.5", {"typical_p": 0.5, "top_n_sigma": 1.5}),
        ("--dynatemp-range 0.5 --dynatemp-exp 2", {"dynatemp_range": 0.5, "dynatemp_exponent": 2}),
        ("--mirostat 2 --mirostat-lr 0.2 --mirostat-ent 4", {"mirostat": 2, "mirostat_eta": 0.2, "mirostat_tau": 4}),
        ("--samplers dry;top-k;temperature", {"samplers": "dry;top-k;temperature"}),
        ("--sampling-seq kt", {"samplers": "top_k;temperature"}),
        ("--dry-sequence-breaker none", {"dry_sequence_breakers": "[]"}),
        (r"--dry-sequence-breaker \n --dry-sequence-breaker \\n", {"dry_sequence_breakers": json.dumps(["\n", r"\n"])}),
        ("-r END --reverse-prompt STOP", {"stop": '["END", "STOP"]'}),
        ("-l 15043+1 -l 13-inf", {"logit_bias": "15043+1,13-inf"}),
        ("--ignore-eos --keep 7 --no-cache-prompt", {"ignore_eos": True, "keep": 7, "cache_prompt": False}),
        ("--rope-scale 4", {"rope_freq_scale": 0.25}),
        ("-t -1 -np -1", {"threads": 0, "slots": 0}),
        ("-lm none", {"mmap": False, "mlock": False}),
        ("-lm mmap+mlock", {"mmap": True, "mlock": True}),
        ("--spec-default", {"speculation": 16}),
        ("--reasoning-format deepseek-legacy", {"reasoning_format": "deepseek-legacy"}),
        ("--image-min-tokens 64 --image-max-tokens 256", {"image_min_tokens": 64, "image_max_tokens": 256}),
        ("--mmproj-offload", {"mmproj_offload": True}),
        ("--no-mmproj-offload", {"mmproj_offload": False}),
        ("--reasoning-format auto --reasoning-effort default", {"reasoning_format": "auto", "template_arguments": ""}),
        (
            '--chat-template-kwargs {"enable_thinking":false,"a":1} --reasoning-effort low',
            {"reasoning": "off", "template_arguments": '{"a": 1, "reasoning_effort": "low"}'},
        ),
    ],
)
def test_a_flag_is_translated_to_settings_of_the_model(served, flags, chosen):
    (model,) = loaded(*flags.split()).models

    assert {name: getattr(model, name) for name in chosen} == chosen


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ("-lv 0", {"log_level": "warning"}),
        ("-lv 3", {"log_level": "info"}),
        ("--verbosity 5", {"log_level": "debug"}),
        ("--log-disable --log-jsonl", {"log_level": "warning", "log_format": "json"}),
        ("--api-prefix /llm/v2", {"api_prefix": "/llm/v2"}),
    ],
)
def test_a_flag_is_translated_to_settings_of_the_server(served, flags, chosen):
    server = loaded(*flags.split()).server

    assert {name: getattr(server, name) for name in chosen} == chosen


def test_adapters_may_be_given_one_by_one(served, tmp_path):
    paths = [tmp_path / name for name in ("a.gguf", "b.gguf")]
    for path in paths:
        path.write_bytes(b"GGUF")

    (model,) = loaded("--lora", str(paths[0]), "--lora-scaled", f"{paths[1]}:0.5").models

    assert model.adapters == ((str(paths[0]), 1.0), (str(paths[1]), 0.5))


@pytest.mark.parametrize(
    ("flag", "text", "name"),
    [("--grammar-file", 'root ::= "a"\n', "grammar"), ("-jf", '{"type": "object"}', "json_schema")],
)
def test_a_form_may_be_in_a_file(served, tmp_path, flag, text, name):
    file = tmp_path / "form"
    file.write_text(text)

    (model,) = loaded(flag, str(file)).models

    assert getattr(model, name) == text


def test_templates_are_told_by_all_names_whether_earlier_thoughts_stay(served):
    (model,) = loaded("--no-reasoning-preserve").models

    told = model.template_defaults
    assert (told["preserve_thinking"], told["clear_thinking"], told["enable_thinking"]) == (False, True, True)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--poll 50", "--poll changes nothing here: threads wait"),
        ("--prio-draft 2", "--spec-draft-prio changes nothing here: all threads"),
        ("--spec-ngram-mod-n-max 64", "--spec-ngram-mod-n-max changes nothing here: --speculation"),
        ("--no-op-offload", "--no-op-offload changes nothing here: libllama decides"),
    ],
)
def test_a_flag_that_changes_nothing_is_told_by_its_own_name(served, flags, words):
    result = run(*flags.split())

    assert (result.exit_code, len(served)) == (0, 1)
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("-C ff", "--cpu-mask is not taken here: taskset"),
        ("--control-vector-layer-range 1 2", "--lora"),
        ("--gpt-oss-20b-default", "-hf ggml-org/gpt-oss-20b-GGUF"),
        ("--rpc host:1", "--peer"),
        ("--load-mode dio", "--mmap 0"),
        ("--sampling-seq kz", "'z' is none of"),
        ("--samplers fancy", "COROSRV_SAMPLERS must be names of samplers"),
        ("--logit-bias 5=1", "COROSRV_LOGIT_BIAS must be"),
        ("--logit-bias 5+101", "COROSRV_LOGIT_BIAS must be"),
        ("--image-min-tokens 300 --image-max-tokens 256", "COROSRV_IMAGE_MIN_TOKENS must be at most COROSRV_IMAGE_MAX"),
        ("--mmproj-device CUDA1", "--no-mmproj-offload"),
        ('--stop "END"', "COROSRV_STOP must be a JSON array"),
        ("--json-schema []", "COROSRV_JSON_SCHEMA must be a JSON object"),
        ('--json-schema {"type":"nothing"}', "COROSRV_JSON_SCHEMA: the schema at #"),
        ('--json-schema {} --grammar root::="a"', "where COROSRV_GRAMMAR is set"),
        ('--template-arguments {"messages":1}', "COROSRV_TEMPLATE_ARGUMENTS must be"),
        ('--template-arguments {"enable_thinking":true}', "none of them enable_thinking"),
        ("--chat-template-kwargs thinking", "--chat-template-kwargs must be a JSON object"),
        ("--api-prefix /llm/", "COROSRV_API_PREFIX must be a path"),
    ],
)
def test_a_flag_that_cannot_be_taken_is_refused_with_what_to_do(served, flags, words):
    result = run(*flags.split())

    assert (result.exit_code, served) == (1, [])
    assert result.stderr.startswith("corosrv: ")
    assert words in result.stderr
