"""Which flags do llama.cpp's programs know, how many values does each take, who else has some?

From the tables of common/arg.cpp and tools/llama-bench/llama-bench.cpp (b11434), all programs
together, and from the documentation of ik_llama.cpp. The spellings of one flag are joined by
`|`; the first stands for all of them. A test asks the real programs whether they agree.
"""

from __future__ import annotations

from typing import Final

_COMMON_0: Final = (
    "-h|--help|--usage --version -cl|--cache-list --completion-bash --verbose-prompt "
    "--display-prompt|--no-display-prompt --swa-full -kvu|--kv-unified|-no-kvu|--no-kv-unified "
    "--cache-idle-slots|--no-cache-idle-slots --context-shift|--no-context-shift --perf|--no-perf "
    "--show-timings|--no-show-timings -e|--escape|--no-escape --prompt-cache-all "
    "--prompt-cache-ro -sp|--special -cnv|--conversation|-no-cnv|--no-conversation "
    "-st|--single-turn -i|--interactive -if|--interactive-first -mli|--multiline-input "
    "--in-prefix-bos --warmup|--no-warmup --spm-infill --ignore-eos -bs|--backend-sampling "
    "-kvo|--kv-offload|-nkvo|--no-kv-offload --repack|-nr|--no-repack --no-host --hellaswag "
    "--winogrande --multiple-choice --kl-divergence -cb|--cont-batching|-nocb|--no-cont-batching "
    "--mmproj-auto|--no-mmproj|--no-mmproj-auto --mmproj-offload|--no-mmproj-offload "
    "--list-devices -cmoe|--cpu-moe --check-tensors --op-offload|--no-op-offload --mtp --dflash "
    "--eagle3 --process-output --nextn --ppl|--no-ppl --show-statistics --parse-special --ids "
    "--stdin --no-bos --no-parse-special --show-count -pps -tgs --reuse-port "
    "--cors-credentials|--no-cors-credentials "
    "--ui-mcp-proxy|--webui-mcp-proxy|--no-ui-mcp-proxy|--no-webui-mcp-proxy "
    "-ag|--agent|-no-ag|--no-agent --ui|--webui|--no-ui|--no-webui --embedding|--embeddings "
    "--rerank|--reranking --cache-prompt|--no-cache-prompt --metrics --props --slots|--no-slots "
    "--models-autoload|--no-models-autoload --jinja|--no-jinja "
    "--reasoning-preserve|--no-reasoning-preserve --skip-chat-parsing|--no-skip-chat-parsing "
    "--prefill-assistant|--no-prefill-assistant --lora-init-without-apply --simple-io "
    "--log-disable --log-jsonl|--no-log-jsonl -v|--verbose|--log-verbose --offline "
    "--log-prefix|--no-log-prefix --log-timestamps|--no-log-timestamps "
    "--spec-draft-cpu-moe|-cmoed|--cpu-moe-draft "
    "--spec-draft-backend-sampling|--no-spec-draft-backend-sampling --diffusion-visual --check "
    "--save-logits --embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default "
    "--fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default "
    "--gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default "
    "--vision-gemma-12b-default --spec-default"
)
_COMMON_1: Final = (
    "-mmdev|--mmproj-device "
    "--server-base -co|--color -t|--threads -tb|--threads-batch -C|--cpu-mask -Cr|--cpu-range "
    "--cpu-strict --prio --poll -Cb|--cpu-mask-batch -Crb|--cpu-range-batch --cpu-strict-batch "
    "--prio-batch --poll-batch -lcs|--lookup-cache-static -lcd|--lookup-cache-dynamic "
    "-c|--ctx-size --kv-unified-per-slot -n|--predict|--n-predict -b|--batch-size "
    "-ub|--ubatch-size --keep -ctxcp|--ctx-checkpoints|--swa-checkpoints "
    "-cms|--checkpoint-min-step -cram|--cache-ram --chunks -fa|--flash-attn -p|--prompt "
    "-sys|--system-prompt -f|--file -sysf|--system-prompt-file --in-file -bf|--binary-file "
    "-ptc|--print-token-count --prompt-cache -r|--reverse-prompt --in-prefix --in-suffix "
    "--samplers -s|--seed --sampler-seq|--sampling-seq --temp|--temperature --top-k --top-p "
    "--min-p --top-nsigma|--top-n-sigma --xtc-probability --xtc-threshold --typical|--typical-p "
    "--repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty --dry-multiplier "
    "--dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker "
    "--adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp --mirostat --mirostat-lr "
    "--mirostat-ent -l|--logit-bias --grammar --grammar-file -j|--json-schema "
    "-jf|--json-schema-file --pooling --attention --rope-scaling --rope-scale --rope-freq-base "
    "--rope-freq-scale --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow "
    "--yarn-beta-fast -gan|--grp-attn-n -gaw|--grp-attn-w -ctk|--cache-type-k -ctv|--cache-type-v "
    "--hellaswag-tasks --winogrande-tasks --multiple-choice-tasks "
    "--save-all-logits|--kl-divergence-base --ppl-stride --ppl-output-type -dt|--defrag-thold "
    "-np|--parallel -np|--parallel -ns|--sequences -mm|--mmproj -mmu|--mmproj-url "
    "--image|--audio|--video --image-min-tokens --image-max-tokens --mtmd-batch-max-tokens "
    "--video-fps --video-timestamp-interval --video-ffmpeg-dir --rpc -lm|--load-mode "
    "-lzm|--lazy-mode --numa -dev|--device -ot|--override-tensor -ncmoe|--n-cpu-moe "
    "-ncffn|--n-cpu-ffn -ngl|--gpu-layers|--n-gpu-layers -sm|--split-mode -ts|--tensor-split "
    "-mg|--main-gpu -fit|--fit -fitp|--fit-print -fitt|--fit-target -fitc|--fit-ctx --override-kv "
    "--lora --lora-scaled --control-vector --control-vector-scaled -a|--alias --tags -m|--model "
    "-mu|--model-url -dr|--docker-repo -hf|-hfr|--hf-repo -hff|--hf-file -hft|--hf-token "
    "--context-file --chunk-size --chunk-separator --junk --pos -o|--output|--output-file "
    "-ofreq|--output-frequency --output-format --save-frequency --chunk|--from-chunk -npp -ntg "
    "-npl --embd-normalize --embd-output-format --embd-separator --cls-separator --host --port "
    "--path --cors-origins --cors-methods --cors-headers --api-prefix --ui-config|--webui-config "
    "--ui-config-file|--webui-config-file --tools --tools-runtime --mcp-servers-config "
    "--mcp-servers-json --api-key --api-key-file --ssl-key-file --ssl-cert-file "
    "--chat-template-kwargs -to|--timeout --sse-ping-interval --threads-http --cache-reuse "
    "--slot-save-path --media-path --models-dir --models-preset --models-max --reasoning-format "
    "-rea|--reasoning --reasoning-effort --reasoning-budget --reasoning-budget-message "
    "--chat-template --chat-template-file -sps|--slot-prompt-similarity --sleep-idle-seconds "
    "--positive-file --negative-file --pca-batch --pca-iter --method --output-format --log-file "
    "--log-prompts-dir --log-colors -lv|--verbosity|--log-verbosity "
    "--spec-draft-hf|-hfd|-hfrd|--hf-repo-draft --spec-draft-threads|-td|--threads-draft "
    "--spec-draft-threads-batch|-tbd|--threads-batch-draft "
    "--spec-draft-cpu-mask|-Cd|--cpu-mask-draft --spec-draft-cpu-range|-Crd|--cpu-range-draft "
    "--spec-draft-cpu-strict|--cpu-strict-draft --spec-draft-prio|--prio-draft "
    "--spec-draft-poll|--poll-draft --spec-draft-cpu-mask-batch|-Cbd|--cpu-mask-batch-draft "
    "--spec-draft-cpu-range-batch|-Crbd|--cpu-range-batch-draft "
    "--spec-draft-cpu-strict-batch|--cpu-strict-batch-draft "
    "--spec-draft-prio-batch|--prio-batch-draft --spec-draft-poll-batch|--poll-batch-draft "
    "--spec-draft-type-k|-ctkd|--cache-type-k-draft "
    "--spec-draft-type-v|-ctvd|--cache-type-v-draft "
    "--spec-draft-override-tensor|-otd|--override-tensor-draft "
    "--spec-draft-n-cpu-moe|--spec-draft-ncmoe|-ncmoed|--n-cpu-moe-draft --spec-draft-n-max "
    "--spec-draft-n-min --spec-synth-len --spec-synth-rates --spec-draft-p-split|--draft-p-split "
    "--spec-draft-p-min|--draft-p-min --spec-draft-sampling "
    "--spec-draft-device|-devd|--device-draft "
    "--spec-draft-ngl|-ngld|--gpu-layers-draft|--n-gpu-layers-draft "
    "--spec-draft-model|-md|--model-draft --spec-type --spec-ngram-mod-n-min "
    "--spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n "
    "--spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n "
    "--spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n "
    "--spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --tts-lang --tts-speaker-file "
    "--diffusion-steps --diffusion-eps --diffusion-algorithm --diffusion-alg-temp "
    "--diffusion-block-length --diffusion-cfg-scale --diffusion-add-gumbel-noise "
    "-lr|--learning-rate -lr-min|--learning-rate-min -decay-epochs|--learning-rate-decay-epochs "
    "-wd|--weight-decay -val-split|--val-split -epochs|--epochs -opt|--optimizer "
    "--logits-output-dir --tensor-filter"
)
_COMMON_2: Final = "--control-vector-layer-range"
_BENCH_0: Final = "-h|--help --version --offline --list-devices -v|--verbose --progress --no-warmup"
_BENCH_1: Final = (
    "-m|--model -hf|-hfr|--hf-repo -hff|--hf-file -hft|--hf-token -p|--n-prompt -n|--n-gen -pg "
    "-d|--n-depth -b|--batch-size -ub|--ubatch-size -ctk|--cache-type-k -ctv|--cache-type-v "
    "-dev|--device -t|--threads -C|--cpu-mask --cpu-strict --poll -ngl|--n-gpu-layers "
    "-ncmoe|--n-cpu-moe -rpc|--rpc -sm|--split-mode -lm|--load-mode -lzm|--lazy-mode "
    "-mg|--main-gpu -nkvo|--no-kv-offload --numa -fa|--flash-attn -embd|--embeddings "
    "-nopo|--no-op-offload --no-host --repack -ts|--tensor-split -ot|--override-tensor "
    "-r|--repetitions --prio --delay -o|--output -oe|--output-err -fitt|--fit-target "
    "-fitc|--fit-ctx"
)
_IK_0: Final = (
    "-fmoe|--fused-moe --no-fmoe|--no-fused-moe -ger|--grouped-expert-routing "
    "--no-fug|--no-fused-up-gate --no-mmad|--no-fused-mul-multiadd -gr|--graph-reuse "
    "--no-gr|--no-graph-reuse -mqkv|--merge-qkv -muge|--merge-up-gate-experts "
    "-khad|--k-cache-hadamard -sas|--scheduler-async -vq|--validate-quants "
    "-rtr|--run-time-repack -ooae|--offload-only-active-experts -smf16|--split-mode-f16 "
    "-smf32|--split-mode-f32 -smgs|--split-mode-graph-scheduling -dkvc|--dump-kv-cache "
    "-no-fa|--no-fa|--no-flash-attn --defer-experts"
)
_IK_1: Final = (
    "-mla|--mla-use -amb|--attention-max-batch -ser|--smart-expert-reduction "
    "-grt|--graph-reduce-type --max-gpu -cuda|--cuda-params -op|--offload-policy "
    "--fit-margin -crs|--cache-ram-similarity --banned-string-file --banned-n "
    "-cd|--ctx-size-draft -draft|--draft-params"
)

REMOVED: Final = {
    "--no-mmap": "--load-mode none",
    "--mmap": "--load-mode mmap",
    "-mmp": "--load-mode mmap",
    "--mlock": "--load-mode mlock",
    "-dio": "--load-mode dio",
    "--direct-io": "--load-mode dio",
    "-ndio": "--load-mode auto",
    "--no-direct-io": "--load-mode auto",
    "--draft": "--spec-draft-n-max N",
    "--draft-n": "--spec-draft-n-max N",
    "--draft-max": "--spec-draft-n-max N",
    "--draft-min": "--spec-draft-n-min N",
    "--draft-n-min": "--spec-draft-n-min N",
}
"""Flags of older builds that b11434 refuses, and what it has instead."""

LOAD_MODE_OF_REMOVED: Final = {
    "--no-mmap": "none",
    "--mmap": "mmap",
    "--mlock": "mlock",
    "-dio": "dio",
    "--direct-io": "dio",
    "-ndio": "auto",
    "--no-direct-io": "auto",
}

ENV: Final = {
    "LLAMA_ARG_CTX_SIZE": "-c", "LLAMA_ARG_BATCH": "-b", "LLAMA_ARG_UBATCH": "-ub",
    "LLAMA_ARG_N_PARALLEL": "-np", "LLAMA_ARG_KV_UNIFIED": "-kvu",
    "LLAMA_ARG_SWA_FULL": "--swa-full", "LLAMA_ARG_FLASH_ATTN": "-fa",
    "LLAMA_ARG_KV_OFFLOAD": "-kvo", "LLAMA_ARG_NO_HOST": "--no-host",
    "LLAMA_ARG_CACHE_TYPE_K": "-ctk", "LLAMA_ARG_CACHE_TYPE_V": "-ctv",
    "LLAMA_ARG_RPC": "--rpc", "LLAMA_ARG_LOAD_MODE": "-lm", "LLAMA_ARG_DEVICE": "-dev",
    "LLAMA_ARG_OVERRIDE_TENSOR": "-ot", "LLAMA_ARG_CPU_MOE": "-cmoe",
    "LLAMA_ARG_N_CPU_MOE": "-ncmoe", "LLAMA_ARG_N_CPU_FFN": "-ncffn",
    "LLAMA_ARG_N_GPU_LAYERS": "-ngl", "LLAMA_ARG_SPLIT_MODE": "-sm",
    "LLAMA_ARG_TENSOR_SPLIT": "-ts", "LLAMA_ARG_MAIN_GPU": "-mg", "LLAMA_ARG_FIT": "-fit",
    "LLAMA_ARG_FIT_TARGET": "-fitt", "LLAMA_ARG_FIT_CTX": "-fitc", "LLAMA_ARG_MODEL": "-m",
    "LLAMA_ARG_HF_REPO": "-hf", "LLAMA_ARG_SPEC_DRAFT_MODEL": "--spec-draft-model",
    "LLAMA_ARG_SPEC_TYPE": "--spec-type", "LLAMA_ARG_MMPROJ": "-mm",
}  # fmt: skip
"""Environment variables of flags that decide memory (`set_env` in common/arg.cpp)."""

_NEGATIVE: Final = frozenset(("-nkvo", "-nr", "-nocb", "-no-kvu", "-no-cnv", "-no-ag"))


def _table(*texts: tuple[str, int]) -> dict[str, tuple[str, int]]:
    """Every spelling to (the first spelling of its flag, number of values)."""
    return {
        spelling: (group.split("|", 1)[0], n_values)
        for text, n_values in texts
        for group in text.split()
        for spelling in group.split("|")
    }


COMMON: Final = _table((_COMMON_0, 0), (_COMMON_1, 1), (_COMMON_2, 2))
BENCH: Final = _table((_BENCH_0, 0), (_BENCH_1, 1))
IK: Final = _table((_IK_0, 0), (_IK_1, 1))
"""Flags that only ik_llama.cpp has."""


def is_negative(spelling: str) -> bool:
    """True for the spelling that switches a flag off (`-nkvo`, `--no-op-offload`)."""
    if spelling == "--no-host":
        return False
    return spelling in _NEGATIVE or spelling.startswith(("--no-", "-no-"))
